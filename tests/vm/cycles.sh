# Part of init on a machine whose perf counts cycles: two loads in containers of their own, the second with three times the
# first one's weight, and perf's count of each beside the agent's.
loads="1 2"
id_of() { echo $id | sed "s/^./$1/"; }
for load in $loads; do
    folder=$pod/cri-containerd-$(id_of $load).scope
    mkdir $folder
    cgroup-cycles $folder /tmp/stop >/tmp/perf$load 2>&1 &
    counts() { grep -q counting /tmp/perf$load; }
    await 120 counts || end "perf does not count: $(cat /tmp/perf$load)"
done
echo 300 >$folder/cpu.weight
for load in $loads; do
    for loop in 1 2; do
        (echo 0 >$pod/cri-containerd-$(id_of $load).scope/cgroup.procs; exec timeout 20 sh -c 'while :; do :; done') &
    done
done
idle() { ! grep -q "populated 1" $pod/cri-containerd-$(id_of 1).scope/cgroup.events $folder/cgroup.events; }
sleep 20
await 240 idle || end "the loads do not end"
# All of it is in what a tick reads that begins after the end.
wanted=$(($(ticks) + 3))
await 240 enough || end "the agent does not tick"
wget -qO /tmp/page $page
: >/tmp/stop
of() { grep "^$1{" /tmp/page | grep "container_id=\"$(id_of $2)\"" | sed 's/.* //'; }
for load in $loads; do
    counted() { [ "$(wc -l </tmp/perf$load)" = 2 ]; }
    await 120 counted || end "perf ended early: $(cat /tmp/perf$load)"
    cycles=$(of energy_agent_container_cpu_cycles_total $load) joules=$(of kepler_container_cpu_joules_total $load)
    echo "@@ cycles $cycles $(tail -n 1 /tmp/perf$load) $joules"
done
