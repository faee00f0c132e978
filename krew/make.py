"""Makes what a release publishes for krew: `kubectl-raydoctor.tar.gz`, and the manifest with its checksum.

    python krew/make.py ADDRESS FOLDER
    kubectl krew install --manifest=FOLDER/raydoctor.yaml --archive=FOLDER/kubectl-raydoctor.tar.gz

ADDRESS is where the archive will be published; krew downloads it from there and compares the checksum.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from pathlib import Path

from raydoctor import __version__

HERE = Path(__file__).parent
MANIFEST = """apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: raydoctor
spec:
  version: v{version}
  shortDescription: Find out why a Ray cluster or job failed
  description: |
    Diagnoses a RayCluster, RayJob or RayService: which pod was killed, evicted or
    not scheduled, what Ray recorded, the cause, the evidence and the fix.
    It uses your own rights and changes nothing.
  caveats: |
    The plugin is a Python package: pip install raydoctor
  platforms:
    - selector:
        matchExpressions:
          - {{key: os, operator: In, values: [linux, darwin]}}
      uri: {address}
      sha256: {checksum}
      bin: kubectl-raydoctor
"""


def make(address: str, folder: Path) -> None:
    """Write the archive and the manifest into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    archive = folder / "kubectl-raydoctor.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(HERE / "kubectl-raydoctor", "kubectl-raydoctor")
        tar.add(HERE.parent / "LICENSE", "LICENSE")
    checksum = hashlib.sha256(archive.read_bytes()).hexdigest()
    text = MANIFEST.format(version=__version__, address=address, checksum=checksum)
    (folder / "raydoctor.yaml").write_text(text)


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
