#!/bin/bash
# Apache-2.0, see LICENSE
# What a person does by hand on one host: the copies and installs of the lab's stack, nothing checked.
# by_hand.sh HOST ARTIFACTS INSTALLER LOCK UV    INSTALLER: pip | uv
# SSH_ARGS: options for ssh and scp.
set -euo pipefail
host=$1 artifacts=$2 installer=$3 lock=$4 uv=$5
run=cuda_11.8.0_520.61.05_linux.run
cudnn=cudnn-linux-x86_64-8.6.0.163_cuda11-archive
read -ra ssh_args <<<"$SSH_ARGS"
files=("$artifacts/$run" "$artifacts/$cudnn.tar.xz" "$lock")
[ "$installer" = pip ] || files+=("$uv")
scp -q "${ssh_args[@]}" "${files[@]}" "$host:/tmp/"
ssh "${ssh_args[@]}" "$host" sudo bash -euo pipefail -s -- "$run" "$cudnn" "$installer" "$(basename "$lock")" <<'REMOTE'
run=$1 cudnn=$2 installer=$3 lock=$4
venv=/opt/by-hand
apt-get update -qq
apt-get install -qq -y --no-install-recommends libxml2 >/dev/null
sh "/tmp/$run" --silent --toolkit --toolkitpath=/usr/local/cuda-11.8 --override >/dev/null
ln -sfn cuda-11.8 /usr/local/cuda
cd /tmp
tar xf "$cudnn.tar.xz"
cp -P "$cudnn"/include/* /usr/local/cuda/include/
cp -P --sparse=always "$cudnn"/lib/libcudnn* /usr/local/cuda/lib64/
chmod a+r /usr/local/cuda/include/cudnn*.h /usr/local/cuda/lib64/libcudnn*
echo /usr/local/cuda-11.8/lib64 >/etc/ld.so.conf.d/by-hand.conf
ldconfig
if [ "$installer" = uv ]; then
  chmod +x uv
  ./uv venv -q "$venv"
  ./uv pip install -q --python "$venv/bin/python" --require-hashes -r "$lock"
else
  apt-get install -qq -y --no-install-recommends python3-venv >/dev/null
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --require-hashes -r "$lock"
fi
rm -rf "$run" "$cudnn" "$cudnn.tar.xz" "$lock" uv
REMOTE
