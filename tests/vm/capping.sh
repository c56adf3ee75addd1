# Part of init: the pod, two busy loops now, is held to a power budget by its cpu.max, and gets back what it had whichever
# way that ends.
open="max 100000"
# More than the pod will be given, which cgroup v1 refuses and v2 takes.
own="150000 100000"
is_open() { [ "$(cat $pod/cpu.max)" = "$open" ]; }
is_capped() { ! is_open; }
counted() { sed -n "s/^$1 //p" $pod/cpu.stat; }
# Hundredths of a second since the boot.
now() { read up _ </proc/uptime; echo ${up%.*}${up#*.}; }
enforce() {
    cat >/tmp/next <<EOF
version: 1
policies:
- name: quiet
  mode: Enforce
  selector: {namespaces: [vm]}
  budget: {watts: 40, components: [cpu]}
EOF
    mv /tmp/next /tmp/policies.yaml
    await 120 is_capped || end "nothing was written to cpu.max"
}

is_open || end "cpu.max was written without a policy: $(cat $pod/cpu.max)"
echo "$own" >$container/cpu.max
for loop in 1 2; do (echo 0 >$container/cgroup.procs; while :; do :; done) & done

# The quota stood for fifteen seconds, and on the page that was read then.
stands() {
    quota=$(cat $pod/cpu.max)
    used=$(counted usage_usec) throttled=$(counted nr_throttled) took=$(now)
    sleep 15
    used=$(($(counted usage_usec) - used)) throttled=$(($(counted nr_throttled) - throttled)) took=$(($(now) - took))
    wget -qO /tmp/page $page
    [ "$(cat $pod/cpu.max)" = "$quota" ]
}
enforce
tries=1
until stands; do
    tries=$((tries + 1))
    [ $tries -le 6 ] || end "the quota does not settle: $quota, then $(cat $pod/cpu.max)"
done
grep -E "^(energy_agent_cap_found_cpus|energy_agent_policy_state|energy_agent_policy_power_watts)" /tmp/page | sed 's/^/@@ metric /'
echo "@@ held $quota $used $throttled $took"
[ "$(cat $container/cpu.max)" = "$own" ] || end "the container's own quota has changed: $(cat $container/cpu.max)"

rm /tmp/policies.yaml
await 120 is_open || end "cpu.max after the policy was deleted: $(cat $pod/cpu.max)"

enforce
kill -9 $pid
wait $pid
is_capped || end "cpu.max is open after kill -9, when nobody was there to open it"
agent restore --state.directory=/tmp/state --gpu=off >/tmp/restored || end "restore: $(cat /tmp/restored)"
is_open || end "cpu.max after kill -9 and the command restore: $(cat $pod/cpu.max)"

start
await 120 is_capped || end "nothing was written to cpu.max after a new start"
kill -TERM $pid
wait $pid || end "the agent ended with $?"
is_open || end "cpu.max after SIGTERM: $(cat $pod/cpu.max)"
