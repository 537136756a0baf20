# The package in the Debian $1. Whatever fails ends this.
mount --bind "$1" "$1"
cd "$1"
mount -t proc proc proc
mount -t tmpfs -o mode=755,nosuid tmpfs dev
touch dev/null
mount --bind /dev/null dev/null
in_it() { chroot . /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@" </dev/null; }

in_it dpkg -i /cofi.deb >out 2>&1 || { cat out >&2; exit 1; }
in_it cofi --version >out
grep -q '^cofi .* (commit [0-9a-f]*)$' out
grep -q '^engines of .*ptrace.*qemu' out
# The manual is where man looks, and each page is one; there is no man here.
for page in cofi cofi-record cofi-insn; do
    in_it zcat "/usr/share/man/man1/$page.1.gz" >out
    grep -q '^\.TH ' out
done
in_it bash -c '. /usr/share/bash-completion/completions/cofi && complete -p cofi' >out
grep -q cofi out
grep -q '^#compdef cofi' usr/share/zsh/vendor-completions/_cofi
grep -q '^complete -c cofi ' usr/share/fish/vendor_completions.d/cofi.fish
in_it cofi record --engine ptrace --verify --output /a.data -- gzip --version >out 2>err
grep -q '^gzip ' out
in_it cofi check /a.data >out
grep ' instructions decoded from ' out
grep -q ' of the recorder proves* it' out
in_it cofi report /a.data >out
grep -q gzip out
in_it dpkg -r cofi >out
[ ! -e usr/bin/cofi ]
echo "the package, in a Debian $(cat etc/debian_version) of $(in_it dpkg-query -W -f . | wc -c) packages: good"
