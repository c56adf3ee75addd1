#!/bin/busybox sh
# Init of a virtual machine with a pure cgroup v2 tree: runs the agent beside a busy container and says, in lines that
# begin with @@, what both the agent and the kernel counted; then holds the pod to a power budget. `cargo xtask vmtest`
# reads them.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mount -t tracefs tracefs /sys/kernel/tracing
mount -t bpf bpf /sys/fs/bpf
mount -t cgroup2 cgroup2 /sys/fs/cgroup
ifconfig lo 127.0.0.1 up
echo "@@ kernel $(uname -r)"

log() { grep -E "WARN|ERROR" /tmp/log | tail -n 8 | sed 's/^/@@ log /'; }
end() { log; echo "@@ end $1"; poweroff -f; }
page=http://127.0.0.1:9102/metrics
ticks() { wget -qO- $page | sed -n 's/^energy_agent_ticks_total //p'; }
# Waits for something: a time limit in quarters of a second, then a command.
await() {
    left=$1; shift
    until "$@" 2>/dev/null; do
        left=$((left - 1))
        [ $left -gt 0 ] || return 1
        sleep 0.25
    done
}

# As the systemd driver of a kubelet names it.
uid=11111111-2222-3333-4444-555555555555
id=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
burstable=/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice
pod=$burstable/kubepods-burstable-pod$(echo $uid | tr - _).slice
container=$pod/cri-containerd-$id.scope
mkdir -p $container
for folder in /sys/fs/cgroup ${burstable%/*} $burstable $pod; do echo +cpu >$folder/cgroup.subtree_control; done

# The kubelet.
mkdir /www
cat >/www/pods <<EOF
{"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [{
  "metadata": {"name": "busy", "namespace": "vm", "uid": "$uid"},
  "spec": {"nodeName": "vm", "containers": [{"name": "main", "image": "busybox"}]},
  "status": {"phase": "Running", "containerStatuses": [{
    "name": "main", "containerID": "containerd://$id", "image": "busybox", "imageID": "", "ready": true,
    "restartCount": 0, "state": {"running": {}}}]}}]}
EOF
httpd -p 127.0.0.1:10255 -h /www

# Starts the agent: a busy CPU is 100 W, and capping is on without a policy.
echo '{"average": {"min_watts": 5, "max_watts": 105}}' >/tmp/coefficients.json
start() {
    agent --ebpf=on --interval=1s --meter.cpu=estimate --meter.estimate-coefficients=/tmp/coefficients.json \
        --pods.source=kubelet --pods.kubelet-url=http://127.0.0.1:10255 --state.directory=/tmp/state \
        --capping=on --capping.policy=/tmp/policies.yaml >>/tmp/log 2>&1 &
    pid=$!
    await 240 wget -qO /dev/null http://127.0.0.1:9102/readyz || { tail -n 20 /tmp/log; end "the agent is not ready"; }
}
start

# One that keeps a CPU, and many that are short: 60 processes of some milliseconds.
(
    echo 0 >$container/cgroup.procs
    i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done &
    n=0; while [ $n -lt 60 ]; do n=$((n + 1)); sha256sum /bin/busybox >/dev/null; done
    wait
)
# All of it is in what a tick reads that begins after the end.
wanted=$(($(ticks) + 3))
enough() { [ "$(ticks)" -ge $wanted ]; }
await 240 enough || end "the agent does not tick"
wget -qO /tmp/page $page
shown="energy_agent_attribution_info energy_agent_meter_up energy_agent_usage_map_drops_total"
shown="$shown energy_agent_missed_switches_total kepler_container_cpu_seconds_total kepler_pod_cpu_joules_total"
for name in $shown; do grep "^$name" /tmp/page; done | sed 's/^/@@ metric /'
echo "@@ usage_usec $(sed -n 's/^usage_usec //p' $container/cpu.stat)"

[ ! -x /bin/cgroup-cycles ] || . /cycles.sh
. /capping.sh
end ok
