#!/bin/sh
# In place of an agent of Ray's on a node; both take 1.7 s of a core to start: `idle_agent.sh AGENT'S COMMAND LINE`.
#
# A raylet ends without its agents, and waits for the files of their ports. -1 is what an agent writes for a service
# that it lacks. An agent ends with its raylet.
ports="metrics_agent metrics_export dashboard_agent_listen"
for word; do
  case $word in
    */runtime_env/agent/main.py) ports=runtime_env_agent ;;
    --session-dir=*) session=${word#*=} ;;
    --node-id=*) node=${word#*=} ;;
  esac
done
for port in $ports; do
  printf %s -1 > "$session/${port}_port_$node"
done
exec tail --pid=$PPID -f /dev/null
