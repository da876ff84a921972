#!/bin/bash
# A real SLURM cluster on one machine, as root, with nodes that are namespaces: each has its own network, host name and
# mounts, shared memory, and a private "SSD" (a tmpfs) at DIR/local.
#
#     virtual_cluster.sh up DIR NODES SSD_MB        hooks, if any, lie in DIR/hooks: prolog, epilog, taskprolog
#     virtual_cluster.sh exec DIR HOST COMMAND...   HOST is ctl or node<i>
#     virtual_cluster.sh down DIR
set -euo pipefail
verb=$1 dir=$2
shift 2

inside() { # HOST COMMAND...: runs a command within a host's namespaces
  local host=$1
  shift
  SLURM_CONF=$dir/slurm.conf nsenter -t "$(cat "$dir/hosts/$host")" -n -m -u -i -- "$@"
}

wait_until() {
  for _ in $(seq 200); do "$@" >/dev/null 2>&1 && return; sleep 0.05; done
  echo "gave up waiting for: $*" >&2
  return 1
}

namespace() { # NAME: a process that holds new namespaces, its id in hosts/NAME
  unshare -n -m -u -i --propagation private sh -c "hostname $1; echo \$\$ >'$dir/hosts/$1'; exec sleep infinity" \
    </dev/null >/dev/null 2>&1 &
  wait_until test -s "$dir/hosts/$1"
  wait_until inside "$1" sh -c "[ \$(hostname) = $1 ]"
}

host() { # NAME ADDRESS SSD_MB
  namespace "$1"
  inside switch ip link add "veth-$1" type veth peer name eth0 netns "$(cat "$dir/hosts/$1")"
  inside switch sh -c "ip link set veth-$1 master bridge; ip link set veth-$1 up"
  inside "$1" sh -c "ip link set lo up; ip addr add $2/24 dev eth0; ip link set eth0 up
    mount --bind '$dir/etc-hosts' /etc/hosts; mount -t tmpfs -o size=256m,mode=1777 shm /dev/shm
    mount -t tmpfs -o size=$3m,mode=1777 ssd '$dir/local'"
}

up() {
  local nodes=$1 ssd=$2 i hook
  mkdir -p "$dir"/{hosts,local,run,spool,state,munge,hooks}
  { echo 127.0.0.1 localhost; echo 10.77.0.250 ctl; for i in $(seq "$nodes"); do echo "10.77.0.$i node$i"; done; } \
    >"$dir/etc-hosts"
  namespace switch
  inside switch sh -c "ip link add bridge type bridge; ip link set bridge up"
  host ctl 10.77.0.250 16
  for i in $(seq "$nodes"); do host "node$i" "10.77.0.$i" "$ssd"; done

  head -c 1024 /dev/urandom >"$dir/munge/key"
  chown -R munge:munge "$dir/munge"
  chmod 755 "$dir/munge"
  chmod 400 "$dir/munge/key"
  runuser -u munge -- munged --key-file="$dir/munge/key" --socket="$dir/munge/socket" --pid-file="$dir/munge/pid" \
    --log-file="$dir/munge/log" --seed-file="$dir/munge/seed"
  wait_until munge -S "$dir/munge/socket" -n

  cat >"$dir/slurm.conf" <<CONF
ClusterName=test
SlurmctldHost=ctl(10.77.0.250)
AuthType=auth/munge
AuthInfo=socket=$dir/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
SlurmctldPidFile=$dir/run/slurmctld.pid
SlurmdPidFile=$dir/run/slurmd.%n.pid
SlurmctldLogFile=$dir/run/slurmctld.log
SlurmdLogFile=$dir/run/slurmd.%n.log
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
KillWait=2
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
PrologFlags=Alloc
NodeName=node[1-$nodes] CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
  for hook in Prolog Epilog TaskProlog; do
    [ -e "$dir/hooks/${hook,,}" ] && echo "$hook=$dir/hooks/${hook,,}" >>"$dir/slurm.conf"
  done
  inside ctl slurmctld
  for i in $(seq "$nodes"); do mkdir -p "$dir/spool/node$i"; inside "node$i" slurmd; done
  wait_until inside ctl sh -c "[ \$(sinfo -h -N -t idle -o %N | sort -u | wc -l) = $nodes ]"
}

down() {
  for file in "$dir"/run/*.pid "$dir"/munge/pid; do [ -s "$file" ] && kill "$(cat "$file")" 2>/dev/null || true; done
  sleep 0.3
  local file host process
  for file in "$dir"/hosts/*; do # whatever still runs on a host, such as the ranks of a job that hangs
    host=$(readlink "/proc/$(cat "$file")/ns/uts") || continue
    for process in /proc/[0-9]*; do
      [ "$(readlink "$process/ns/uts")" != "$host" ] || kill -9 "${process#/proc/}" 2>/dev/null || true
    done
  done
}

case $verb in
  up) up "$@" ;;
  exec) inside "$@" ;;
  down) down ;;
esac
