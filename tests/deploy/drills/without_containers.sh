#!/usr/bin/env bash
# Starts systemd in a copy of this machine that is thrown away, with a checkout in /opt/gdpfed: CHECKOUT
set -euo pipefail
mount --make-rprivate /
copy=$(mktemp -d)
mount -t tmpfs -o size=4g tmpfs "$copy"
mkdir "$copy"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$copy/upper,workdir=$copy/work" "$copy/root"
cd "$copy/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t tmpfs -o mode=755 tmpfs sys/fs/cgroup
for kind in systemd memory pids cpu; do
    mkdir "sys/fs/cgroup/$kind"
    name=$kind
    [ "$kind" != systemd ] || name=none,name=systemd
    mount -t cgroup -o "$name" cgroup "sys/fs/cgroup/$kind" || true
done
mount --rbind /dev dev
mount -t tmpfs tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
mkdir -p opt/gdpfed srv/gdpfed
rm -rf etc/systemd/system/*.wants
(cd "$1" && tar -c --exclude=.flwr --exclude=.git .) | tar -x -C opt/gdpfed
# An interpreter in root's home is none for other users.
bin=$(readlink -f opt/gdpfed/.venv/bin)
case $(readlink -f "$bin/python") in
/root/*)
    rm ".$bin/python"
    ln -s /usr/bin/python3.11 ".$bin/python"
    sed -i 's#^home = .*#home = /usr/bin#' ".$bin/../pyvenv.cfg"
    ;;
esac
export container=docker
# systemd mounts credentials beside its services, which they see through a shared mount.
exec chroot . sh -c 'mount --make-rshared / && exec /lib/systemd/systemd --unit=basic.target --log-target=null --show-status=0'
