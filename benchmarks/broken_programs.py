"""Small programs that break, each in one way, for `benchmarks.remedies`: some seconds each on a real Ray."""

from __future__ import annotations

_OOM = """
import ray, time
ray.init(num_cpus=4)
@ray.remote(max_retries=0)
def train(shard):
    held = []
    for _ in range(14):
        held.append(b"x" * (100 << 20))
        time.sleep(0.15)
    time.sleep(1)
    return len(held)
assert ray.get([train.remote(shard) for shard in range(4)]) == [14] * 4
"""
PROGRAMS = {
    "oom-tasks-memory": _OOM,
    "oom-threshold": """
import ray, time
ray.init(num_cpus=2)
@ray.remote(max_retries=0)
def build():
    held = []
    for _ in range(20):
        held.append(b"x" * (100 << 20))
        time.sleep(0.1)
    time.sleep(1)
    return len(held)
assert ray.get(build.remote()) == 20
""",
    "oom-loop": """
import ray, time
ray.init(num_cpus=2)
@ray.remote
def build():
    held = []
    for _ in range(30):
        held.append(b"x" * (100 << 20))
        time.sleep(0.05)
    time.sleep(1)
    return len(held)
try:
    assert ray.get(build.remote()) == 30
except ray.exceptions.OutOfMemoryError:
    print("the task failed instead of looping")
""",
    "actor-restart-loop": """
import os, ray
ray.init(num_cpus=2)
@ray.remote(max_restarts=-1, max_task_retries=-1)
class Decoder:
    def decode(self, frame):
        if frame == 3:
            os.kill(os.getpid(), 9)
        return frame
decoder = Decoder.remote()
done = []
for frame in range(5):
    try:
        done.append(ray.get(decoder.decode.remote(frame)))
    except ray.exceptions.RayError as error:
        print("frame", frame, "failed:", type(error).__name__)
assert done == [0, 1, 2, 4], done
""",
    "infeasible-cpus": """
import ray
ray.init(num_cpus=2)
@ray.remote(num_cpus=8)
def train():
    return 1
assert ray.get(train.remote()) == 1
""",
    "infeasible-fail-early": """
import ray
ray.init(num_cpus=2)
@ray.remote(num_cpus=8)
def train():
    return 1
try:
    ray.get(train.remote())
except ray.exceptions.RayError as error:
    print("failed instead of waiting:", type(error).__name__)
""",
    "infeasible-gpu": """
import ray
ray.init(num_cpus=2)
@ray.remote(num_gpus=1)
def infer():
    return 1
assert ray.get(infer.remote()) == 1
""",
    "infeasible-memory": """
import ray
ray.init(num_cpus=2)
@ray.remote(memory=900 * 1024**3)
def load():
    return 1
assert ray.get(load.remote()) == 1
""",
    "infeasible-name": """
import ray
ray.init(num_cpus=2, resources={"accelerator": 2})
@ray.remote(resources={"acelerator": 1})
def infer():
    return 1
assert ray.get(infer.remote()) == 1
""",
    "infeasible-label": """
import ray
ray.init(num_cpus=2, labels={"zone": "east"})
@ray.remote(label_selector={"zone": "west"})
def infer():
    return 1
assert ray.get(infer.remote()) == 1
""",
    "infeasible-actor-cpus": """
import ray
ray.init(num_cpus=2)
@ray.remote(num_cpus=8)
class Trainer:
    def step(self):
        return 1
trainer = Trainer.remote()
assert ray.get(trainer.step.remote()) == 1
""",
    "starved-fewer": """
import ray
ray.init(num_cpus=3)
@ray.remote(num_cpus=1)
class Simulator:
    def ping(self):
        return 1
actors = [Simulator.remote() for _ in range(3)]
ray.get([actor.ping.remote() for actor in actors])
@ray.remote
def train():
    return 2
assert ray.get(train.remote()) == 2
""",
    "starved-more-actors": """
import ray
ray.init(num_cpus=3)
@ray.remote(num_cpus=1)
class Simulator:
    def ping(self):
        return 1
actors = [Simulator.remote() for _ in range(5)]
ray.get([actor.ping.remote() for actor in actors])
""",
    "starved-resource": """
import ray
ray.init(num_cpus=4, resources={"disk": 2})
@ray.remote(resources={"disk": 1})
class Reader:
    def ping(self):
        return 1
readers = [Reader.remote() for _ in range(2)]
ray.get([reader.ping.remote() for reader in readers])
@ray.remote(resources={"disk": 1})
def scan():
    return 2
assert ray.get(scan.remote()) == 2
""",
    "group-strict-spread": """
import ray
from ray.util.placement_group import placement_group
ray.init(num_cpus=4)
bundles = [{"CPU": 1}] * 3
pg = placement_group(bundles, strategy="STRICT_SPREAD")
ray.get(pg.ready())
""",
    "group-strict-pack": """
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
cluster.add_node(num_cpus=2)
ray.init(address=cluster.address)
bundles = [{"CPU": 1}] * 4
pg = placement_group(bundles, strategy="STRICT_PACK")
ray.get(pg.ready())
""",
    "group-too-large": """
import ray
from ray.util.placement_group import placement_group
ray.init(num_cpus=3)
pg = placement_group([{"CPU": 2}] * 3)
ray.get(pg.ready())
""",
    "group-bundle-too-large": """
import ray
from ray.util.placement_group import placement_group
ray.init(num_cpus=3)
pg = placement_group([{"CPU": 8}])
ray.get(pg.ready())
""",
    "group-held": """
import ray
from ray.util.placement_group import placement_group
ray.init(num_cpus=3)
@ray.remote(num_cpus=1)
class Simulator:
    def ping(self):
        return 1
actors = [Simulator.remote() for _ in range(2)]
ray.get([actor.ping.remote() for actor in actors])
pg = placement_group([{"CPU": 1}] * 2)
ray.get(pg.ready())
""",
    "nested-get-fewer": """
import ray
ray.init(num_cpus=4, resources={"disk": 2})
@ray.remote(resources={"disk": 1})
def part(case):
    return case
@ray.remote(resources={"disk": 1})
def whole(case):
    import time
    time.sleep(0.5)
    return ray.get(part.remote(case))
cases = [1, 2, 3, 4]
running = [whole.remote(case) for case in cases]
done = []
done += running
assert sorted(ray.get(done)) == cases
""",
    "nested-get-return": """
import ray
ray.init(num_cpus=4, resources={"disk": 2})
@ray.remote(resources={"disk": 1})
def part(case):
    return case
@ray.remote(resources={"disk": 1})
def whole(case):
    import time
    time.sleep(0.5)
    return ray.get(part.remote(case))
assert ray.get([whole.remote(case) for case in (1, 2, 3)]) == [1, 2, 3]
""",
    "nested-get-actors": """
import ray
ray.init(num_cpus=2)
@ray.remote
def work(case):
    return case
@ray.remote(num_cpus=1)
class Planner:
    def plan(self):
        return ray.get(work.remote(1))
planners = [Planner.remote() for _ in range(2)]
assert set(ray.get([planner.plan.remote() for planner in planners])) == {1}
""",
    "actor-deadlock-threads": """
import ray
ray.init(num_cpus=4)
@ray.remote
class Desk:
    def meet(self, other):
        self.other = other
    def ask(self):
        return ray.get(self.other.answer.remote())
    def answer(self):
        return 1
@ray.remote
class Book:
    def meet(self, other):
        self.other = other
    def answer(self):
        return ray.get(self.other.look_up.remote())
    def look_up(self):
        return 1
@ray.remote
class Shelf:
    def meet(self, other):
        self.other = other
    def ask(self):
        return ray.get(self.other.answer.remote())
    def look_up(self):
        return 1
shelf = Shelf.remote()
book = Book.remote()
ray.get([shelf.meet.remote(book), book.meet.remote(shelf)])
assert ray.get(shelf.ask.remote()) == 1
""",
    "actor-self-call": """
import ray
ray.init(num_cpus=2)
@ray.remote
class Desk:
    def look_up(self):
        return 1
    def ask(self, me):
        return ray.get(me.look_up.remote())
desk = Desk.remote()
assert ray.get(desk.ask.remote(desk)) == 1
""",
    "async-blocked": """
import ray, time
ray.init(num_cpus=2)
@ray.remote
class Poller:
    def __init__(self):
        self.done = False
    async def wait(self):
        while not self.done:
            time.sleep(300)
        return 1
    async def stop(self):
        self.done = True
poller = Poller.remote()
waiting = poller.wait.remote()
time.sleep(2)
poller.stop.remote()
assert ray.get(waiting) == 1
""",
    "name-in-other-namespace": """
import ray
ray.init(num_cpus=2, namespace="training")
@ray.remote
class Store:
    def get(self):
        return 1
store = Store.options(name="store").remote()
ray.get(store.get.remote())
@ray.remote
def read():
    found = ray.get_actor("store", namespace="serving")
    return ray.get(found.get.remote())
assert ray.get(read.remote()) == 1
""",
    "name-never-created": """
import ray
ray.init(num_cpus=2)
@ray.remote
class Store:
    def get(self):
        return 1
store = ray.get_actor("store")
assert ray.get(store.get.remote()) == 1
""",
    "actor-owner-died": """
import ray, time
ray.init(num_cpus=3, namespace="n")
@ray.remote
class Store:
    def get(self):
        return 1
@ray.remote
class Builder:
    def build(self):
        self.store = Store.remote()
        ray.get(self.store.get.remote())
        return self.store
builder = Builder.remote()
store = ray.get(builder.build.remote())
ray.kill(builder)
time.sleep(2)
assert ray.get(store.get.remote()) == 1
""",
    "owner-died-put": """
import ray, time
ray.init(num_cpus=2)
@ray.remote
class Loader:
    def load(self):
        value = b"x" * 2_000_000
        return ray.put(value)
loader = Loader.remote()
table = ray.get(loader.load.remote())
ray.kill(loader)
time.sleep(2)
assert len(ray.get(table)) == 2_000_000
""",
    "actor-handle-dropped": """
import ray, time
ray.init(num_cpus=2)
@ray.remote
class Store:
    def get(self):
        return 1
def create():
    store = Store.options(name="store").remote()
    ray.get(store.get.remote())
create()
time.sleep(2)
assert ray.get(ray.get_actor("store").get.remote()) == 1
""",
    "actor-killed": """
import ray, time
ray.init(num_cpus=2)
@ray.remote
class Worker:
    def work(self):
        time.sleep(3)
        return 1
worker = Worker.remote()
pending = [worker.work.remote()]
time.sleep(1)
ray.kill(worker)
assert ray.get(pending) == [1]
""",
    "large-closure": """
import ray
ray.init(num_cpus=2)
table = b"x" * (120 << 20)
@ray.remote
def train(i):
    return len(table) + i
assert ray.get(train.remote(1)) == (120 << 20) + 1
""",
    "not-serializable-lock": """
import ray, threading
ray.init(num_cpus=2)
lock = threading.Lock()
@ray.remote
def count(n):
    with lock:
        return n + 1
assert ray.get(count.remote(1)) == 2
""",
    "module-of-the-user": """
import os, ray, sys
os.makedirs("lib", exist_ok=True)
with open("lib/features.py", "w") as file:
    file.write("def make(n): return n + 1")
ray.init(num_cpus=2)
sys.path.insert(0, os.path.abspath("lib"))
import features
@ray.remote
def train(n):
    return features.make(n)
assert ray.get(train.remote(1)) == 2
""",
    "environment-after-init": """
import os, ray
ray.init(num_cpus=2)
os.environ["STORE_URL"] = "memory://"
@ray.remote
def read():
    return os.environ["STORE_URL"]
assert ray.get(read.remote()) == "memory://"
""",
    "relative-path": """
import os, ray
os.makedirs("input", exist_ok=True)
with open("input/rows.txt", "w") as file:
    file.write("1")
ray.init(num_cpus=2)
@ray.remote
def count():
    return len(open("rows.txt").read())
assert ray.get(count.remote()) == 1
""",
    "read-only-array": """
import numpy, ray
ray.init(num_cpus=2)
@ray.remote
def scale(array):
    array *= 2
    return int(array.sum())
assert ray.get(scale.remote(numpy.ones(100_000, dtype=int))) == 200_000
""",
    "reference-in-list": """
import ray
ray.init(num_cpus=2)
@ray.remote
def total(parts):
    return sum(parts)
assert ray.get(total.remote([ray.put(n) for n in range(3)])) == 3
""",
    "direct-call": """
import ray
ray.init(num_cpus=2)
@ray.remote
def double(n):
    return 2 * n
result = double(4)
assert result == 8
""",
    "more-returned": """
import ray
ray.init(num_cpus=2)
@ray.remote(num_returns=2)
def cut(rows):
    return rows[:2], rows[2:4], rows[4:]
assert ray.get(cut.remote([1, 2, 3, 4, 5])) == [[1, 2], [3, 4], [5]]
""",
    "signal-in-method": """
import ray, signal
ray.init(num_cpus=2)
@ray.remote(max_concurrency=4)
class Trainer:
    def __init__(self):
        self.stops = False
    def fit(self):
        signal.signal(signal.SIGUSR1, self.stop)
        return "fitted"
    def stop(self, *_):
        self.stops = True
assert ray.get(Trainer.remote().fit.remote()) == "fitted"
""",
    "module-constant": """
import ray
with open("places.py", "w") as file:
    file.write("BASE = None")
import places
ray.init(num_cpus=2)
places.BASE = "/data"
@ray.remote
def path(name):
    return places.BASE + "/" + name
assert ray.get(path.remote("rows")) == "/data/rows"
""",
    "alarm-left-armed": """
import ray, signal, time
ray.init(num_cpus=1)
def too_late(*_):
    raise TimeoutError("2 s")
@ray.remote
def quick():
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(2)
    return 1
@ray.remote
def norm(n):
    for _ in range(40):
        time.sleep(0.1)
    return n
assert ray.get(quick.remote()) == 1
assert ray.get(norm.remote(1)) == 1
""",
    "module-missing": """
import ray
ray.init(num_cpus=2)
@ray.remote
def parse():
    import cowsay
    return 1
assert ray.get(parse.remote()) == 1
""",
    "pip-no-such-version": """
import ray
ray.init(num_cpus=2, runtime_env={"pip": ["six==99.0.0"]})
@ray.remote
def parse():
    import six
    return 1
assert ray.get(parse.remote()) == 1
""",
    "package-too-large": """
import os, ray
os.makedirs("project/data", exist_ok=True)
with open("project/main.py", "w") as file:
    file.write("VALUE = 1")
with open("project/data/table.bin", "wb") as file:
    file.write(os.urandom(600 << 20))
ray.init(num_cpus=2, runtime_env={"working_dir": "project"})
@ray.remote
def train():
    import main
    return main.VALUE
assert ray.get(train.remote()) == 1
""",
    "files-limit": """
import ray
ray.init(num_cpus=2)
@ray.remote
def read(shard):
    held = [open("/dev/null") for _ in range(1500)]
    return len(held)
assert ray.get([read.remote(shard) for shard in range(2)]) == [1500] * 2
""",
    "passing-failure": """
import os, ray
ray.init(num_cpus=2)
marker = os.path.abspath("tried")
@ray.remote
def download():
    if not os.path.exists(marker):
        open(marker, "w").close()
        raise ConnectionError("the server closed the connection")
    os.remove(marker)
    return 1
if os.path.exists(marker):
    os.remove(marker)
assert ray.get(download.remote()) == 1
""",
    "worker-sys-exit": """
import sys, ray
ray.init(num_cpus=2)
@ray.remote(max_retries=0)
def convert(name):
    if name.endswith(".csv"):
        sys.exit(3)
    return name
assert ray.get(convert.remote("a.csv")) == "a.csv"
""",
    "spill-no-directory": """
import ray
ray.init(num_cpus=2, object_store_memory=80 << 20, object_spilling_directory="/proc/nowhere")
refs = [ray.put(b"x" * (20 << 20)) for _ in range(8)]
assert len(ray.get(refs[0])) == 20 << 20
""",
    "pending-calls": """
import ray, time
ray.init(num_cpus=2)
@ray.remote
class Sink:
    def write(self, n):
        time.sleep(0.01)
        return n
sink = Sink.options(max_pending_calls=5).remote()
items = range(20)
results = [sink.write.remote(item) for item in items]
assert len(ray.get(results)) == 20
""",
    "message-too-large": """
import ray
ray.init(num_cpus=2)
@ray.remote
def join(*parts):
    return len(parts)
parts = [b"x" * 90_000] * 200
assert ray.get(join.remote(*parts)) == 200
""",
    "address-of-nothing": """
import ray
ray.init()
@ray.remote
def train():
    return 1
assert ray.get(train.remote()) == 1
""",
    "serve-replicas": """
import ray
from ray import serve
ray.init(num_cpus=2)
@serve.deployment(ray_actor_options={"num_cpus": 8})
class Generator:
    def __call__(self):
        return "ok"
serve.run(Generator.bind(), route_prefix=None)
""",
    "serve-many-replicas": """
import ray
from ray import serve
ray.init(num_cpus=3)
@serve.deployment(num_replicas=5, ray_actor_options={"num_cpus": 1})
class Generator:
    def __call__(self):
        return "ok"
serve.run(Generator.bind(), route_prefix=None)
""",
    "setup-timeout": """
import ray
ray.init(num_cpus=2, runtime_env={"pip": ["six"], "config": {"setup_timeout_seconds": 1}})
@ray.remote
def parse():
    return 1
assert ray.get(parse.remote()) == 1
""",
}
