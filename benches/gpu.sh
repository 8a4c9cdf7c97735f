#!/bin/bash
# Training steps on the GPUs of this machine, beside the peers', with programs that were built elsewhere.
#
#     OUT=out benches/gpu.sh BINARIES PYTHON [GROUP...]
#
# BINARIES: folder with `bench` and, for more than one GPU, `nccl_conformance`; built with
#     cargo build --release --workspace --features terrashard-tests/nccl,terrashard-trainer/nccl,terrashard-benches/nccl
# PYTHON: an interpreter whose torch, of the version that `cargo xtask libtorch` pins, computes on GPUs; its LibTorch is used.
#
# Environment, all optional:
#     OUT      where rows, tables and logs go; default: target/gpu
#     PEERS    folder of the peers' scripts; without it, ours alone are measured
#     PEER     which peers, by comma; default: PyTorch's own
#     GPUS     for groups of several; default: all that there are
#     SECONDS_PER_GROUP   after which a group begins no further measurement; default: 240
#     COMMIT   what the rows note as the commit
#
# Groups, each in a folder of its own under OUT, in the order given; default: one
#     conformance  every collective operation on all GPUs against its definition
#     one          B0 in bf16, tf32 and fp32, on one GPU
#     large        B5 and XL in bf16 on one GPU
#     b0 b5 xl     one model at stages 0 to 3 on all GPUs, bf16
#     recompute    XL at stage 3 with recomputation
#     offload      XL, 8 samples, at stages 2 and 3 with offload
#     small        B5 and XL at 4 and 8 samples, where peers are bound by their host
#     overlap      XL at stages 2 and 3 without overlap
#     scaling      B0, B5 and XL on all GPUs, one, half of them and so on, at stages 0 to 3, and with groups of half of them that shard;
#                  and what each GPU does beside one that is alone
#     reshard      the example's training on all GPUs, a quarter of them and all again, beside one that was not interrupted; needs `terrashard`
#
# All that is to be known of a machine with 8 GPUs, in 9 minutes:
#     OUT=out benches/gpu.sh BINARIES PYTHON conformance scaling reshard
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ $# -lt 2 ]; then
  sed -n '2,/^set/{/^#/p}' "${BASH_SOURCE[0]}" | cut -c3-
  exit 2
fi
binaries=$(cd "$1" && pwd) || exit 2
python=$2
shift 2
OUT=${OUT:-$here/../target/gpu}
mkdir -p "$OUT" && OUT=$(cd "$OUT" && pwd) || exit 2

# LibTorch of that Python, and the libraries that its packages bring along.
torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))') || exit 2
libraries=$torch/lib
for folder in "$(dirname "$torch")"/nvidia/*/lib; do
  [ -d "$folder" ] && libraries=$libraries:$folder
done
export LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
# A program that was linked where LibTorch is for the CPU alone does not ask for the rest by itself.
if [ ! -e "$torch/lib/libtorch_cuda.so" ]; then
  echo "$torch is for the CPU alone" >&2
  exit 2
fi
cuda=$torch/lib/libtorch_cuda.so

gpus=${GPUS:-$("$python" -c 'import torch; print(torch.cuda.device_count())')}
echo "$gpus GPUs, torch $("$python" -c 'import torch; print(torch.__version__, "cuda", torch.version.cuda, "nccl", torch.cuda.nccl.version())')"

peers=()
if [ -n "${PEERS:-}" ]; then
  peers=(--peers "$PEERS" --python "$python")
  [ -n "${PEER:-}" ] && peers+=(--peer "$PEER")
fi
failed=0

# stages NAME ARGUMENTS...: rows in OUT/NAME as they are measured.
stages() {
  local name=$1
  shift
  LD_PRELOAD=$cuda "$binaries/bench" stages --device cuda --out "$OUT/$name" --seconds "${SECONDS_PER_GROUP:-240}" \
    ${COMMIT:+--commit "$COMMIT"} "$@" 2>"$OUT/$name.log" || failed=1
  tail -n 5 "$OUT/$name.log"
}

# What more GPUs are worth. All of them first, and what is compared with second: time may be short.
scaling() {
  stages scaling-all --models b0,b5,xl --ranks "$gpus" --stages 0,1,2,3
  stages scaling-1 --models b0,b5,xl --stages 0
  if [ "$gpus" -ge 4 ]; then
    stages scaling-groups --models b0,b5,xl --ranks "$gpus" --stages "2+group$((gpus / 2)),3+group$((gpus / 2))"
  fi
  local some
  for ((some = gpus / 2; some > 1; some /= 2)); do
    stages "scaling-$some" --models b0,b5,xl --ranks "$some" --stages 0,1,2,3
  done
  LD_PRELOAD=$cuda "$binaries/bench" scaling "$OUT"/scaling-*/ --out "$OUT/efficiency" || failed=1
}

# fit NAME RANKS ARGUMENTS...: the example's training on so many GPUs, in OUT/NAME.
fit() {
  local name=$1 ranks=$2
  shift 2
  LD_PRELOAD=$cuda "$binaries/terrashard" launch -n "$ranks" -- fit "$here/../examples/water.toml" --run "$OUT/$name" --device cuda \
    --stage 3 --quiet --set train.steps=12 --set train.warmup_steps=2 --set train.schedule=constant --set zero.ranks=auto "$@" >>"$OUT/reshard.log" 2>&1 || failed=1
}

reshard() {
  local fewer=$((gpus >= 4 ? gpus / 4 : 1))
  rm -rf "$OUT/resharded" "$OUT/whole" "$OUT/reshard.log"
  fit whole "$gpus"
  fit resharded "$gpus" --stop-after 4
  fit resharded "$fewer" --stop-after 8
  fit resharded "$gpus"
  tail -n 3 "$OUT/reshard.log"
  # It ends with 1 where there are differences, which other orders of summation make.
  LD_PRELOAD=$cuda "$binaries/terrashard" ckpt diff "$OUT/whole" "$OUT/resharded" | tee "$OUT/reshard.txt" | tail -n 4
}

for group in "${@:-one}"; do
  echo "== $group"
  case $group in
  conformance) LD_PRELOAD=$cuda "$binaries/nccl_conformance" 2>&1 | tee "$OUT/conformance.log" || failed=1 ;;
  one) stages one --models b0 --precision bf16,tf32,fp32 "${peers[@]}" ;;
  large) stages large --models b5,xl "${peers[@]}" ;;
  b0 | b5 | xl) stages "$group" --models "$group" --ranks "$gpus" --stages 0,1,2,3 "${peers[@]}" ;;
  recompute) stages recompute --models xl --ranks "$gpus" --stages 3+recompute "${peers[@]}" ;;
  offload) stages offload --models xl --batch 8 --ranks "$gpus" --stages 2+offload,3+offload "${peers[@]}" ;;
  small) stages small --models b5,xl --batch 4,8 --ranks "$gpus" --stages 0 "${peers[@]}" ;;
  overlap) stages overlap --models xl --ranks "$gpus" --stages 2,3 --no-overlap ;;
  scaling) scaling ;;
  reshard) reshard ;;
  *) echo "no group $group" >&2 && exit 2 ;;
  esac
done

# The tables of all groups, one after another.
echo "== tables"
for table in "$OUT"/*/README.md; do
  [ -e "$table" ] && grep '^|' "$table"
done
exit $failed
