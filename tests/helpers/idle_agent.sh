#!/bin/sh
# In place of Ray's two agents on a node, which take 1.7 s of a core to start: `idle_agent.sh AGENT'S COMMAND LINE`.
#
# A raylet ends without its agents, and waits for the files of their ports. -1 is what an agent writes for a service
# that it lacks. An agent ends with its raylet.
for word; do
  case $word in
    --session-dir=*) session=${word#*=} ;;
    --node-id=*) node=${word#*=} ;;
  esac
done
for port in metrics_agent metrics_export dashboard_agent_listen runtime_env_agent; do
  printf %s -1 > "$session/${port}_port_$node"
done
exec tail --pid=$PPID -f /dev/null
