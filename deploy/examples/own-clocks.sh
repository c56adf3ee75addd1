#!/bin/sh
# A recommender of one's own, for GPUs whose policy says `algorithm: external`: low clocks while power is dear.
#
#   own-clocks.sh NODE DEAR HIGH_MHZ LOW_MHZ PRICE GPU-UUID...
#
# PRICE is a command that prints a number, such as 'curl --silent http://prices.example/now'; from DEAR on it is dear. The floors of
# the policy and of the device hold whatever this asks for. If it ends, its clocks expire, and the policy's own law goes on. Its
# account needs get, create and patch on nodefrequencies.power.energy-agent.io.
set -eu
node=$1 dear=$2 high=$3 low=$4 price=$5
shift 5

while true; do
    now=$($price)
    clock=$(awk -v now="$now" -v dear="$dear" -v high="$high" -v low="$low" 'BEGIN {print (now + 0 >= dear + 0) ? low : high}')
    expires=$(date --utc --date="+${EXPIRES:-300} seconds" +%Y-%m-%dT%H:%M:%SZ)
    {
        echo "apiVersion: power.energy-agent.io/v1alpha1"
        echo "kind: NodeFrequencies"
        echo "metadata: {name: $node}"
        echo "spec:"
        echo "  gpuFrequencies:"
        for uuid in "$@"; do
            echo "  - {uuid: $uuid, graphicsFrequency: $clock, expirationTime: \"$expires\"}"
        done
    } | kubectl apply --server-side --field-manager="${MANAGER:-example.com/price}" --filename=-
    # A GPU that somebody else has clocks for is refused, and set -e ends this.
    if [ -n "${ONCE:-}" ]; then exit; fi
    sleep "${PAUSE:-60}"
done
