# The program of the archive in the folder $1, which has nothing else but busybox. Whatever fails ends this.
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
touch dev/null
mount --bind /dev/null dev/null
cofi() { chroot . /usr/bin/cofi "$@"; }

for folder in lib lib64 usr/lib bin tmp; do
    if [ -e "$folder" ]; then
        echo "there is $folder" >&2
        exit 1
    fi
done
cofi --version >out
grep -q '^cofi .* (commit [0-9a-f]*)$' out
grep -q '^engines of .*ptrace.*qemu' out
words=usr/share/doc/cofi/copyright
cofi record --engine ptrace --output /a.data -- /busybox sha256sum "$words" >out 2>err
sha256sum "$words" | cmp - out
cofi check /a.data >out
grep " instructions decoded from " out
grep -q " of the recorder proves* it" out
cofi report /a.data >out
grep -q busybox out
cofi insn /a.data >out
grep -q syscall out
cofi insn --json /a.data >out
grep -q '^{"insn":' out
echo "the archive, in a folder without a C library: good"
