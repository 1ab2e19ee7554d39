#!/bin/sh
# Makes expected.json from the log with grep, awk and jq alone. Run with the corpus as the first argument: sh commands.sh <corpus>
set -eu
corpus=$1
text=$(mktemp)
for file in "$corpus"/nccl-stub/split-8r-healthy/evidence/logs/nccl.*; do case "$file" in *.gz) gzip -dc "$file" ;; *) cat "$file" ;; esac; done > "$text"
ranks=$(grep -E 'Init (START|COMPLETE)' "$text" | grep -oE ' rank [0-9]+ nranks' | awk '{print $2}' | sort -nu | jq -sc .)
hosts=$(sed -E 's|^\[[0-9]+,[0-9]+\]<[a-z]+>:||' "$text" | grep -oE '^[A-Za-z0-9_.-]+:[0-9]+:[0-9]+ \[[0-9]+\] NCCL INFO' | cut -d: -f1 | sort -u | jq -Rnc '[inputs]')
complete=$(grep 'Init COMPLETE' "$text" | grep -oE 'nranks [0-9]+' | awk '{n[$2]++} END {for (k in n) print k, n[k]}' | sort -n | jq -Rnc '[inputs | split(" ") | {(.[0]): (.[1] | tonumber)}] | add')
ids=$(grep -E 'Init (START|COMPLETE)' "$text" | grep -oE 'nranks [0-9]+ .*commId 0x[0-9a-f]+' | awk '{print $NF, $2}' | sort -u | jq -Rnc '[inputs | split(" ") | {(.[0]): (.[1] | tonumber)}] | add // {}')
channels=$(grep -oE '[0-9]+ coll channels' "$text" | awk '{n[$1]++} END {for (k in n) print k, n[k]}' | sort -n | jq -Rnc '[inputs | split(" ") | {(.[0]): (.[1] | tonumber)}] | add')
# Pair, and the transport as printed: the word before the slash; for NET also the network's name; "direct shared memory" is SHM.
pairs=$(grep -E 'Channel [0-9]+(/[0-9]+)? : [0-9]+\[' "$text" | grep -E ' via ' | sed -E 's/.* : ([0-9]+)\[[^]]*\] -> ([0-9]+)\[[^]]*\].* via (direct shared memory|NET\/[^\/]+|[A-Z0-9]+).*/\1->\2 \3/; s/direct shared memory/SHM/' | awk '{k=$1; $1=""; n[k "|" substr($0,2)]++} END {for (p in n) print p "|" n[p]}' | sort | jq -Rnc '[inputs | split("|") | {(.[0] + " " + .[1]): (.[2] | tonumber)}] | add // {}')
rm "$text"
jq -Sn --argjson ranks "$ranks" --argjson hosts "$hosts" --argjson complete "$complete" --argjson ids "$ids" --argjson channels "$channels" --argjson pairs "$pairs" \
  '{source: "nccl-stub/split-8r-healthy/evidence/logs/nccl.*", ranks: $ranks, hosts: $hosts, init_complete_by_nranks: $complete, nranks_by_comm_id: $ids, lines_by_coll_channels: $channels, connections: $pairs}'
