//! A recording with calls of all kinds, for the tests of indexes.

use std::path::{Path, PathBuf};

use cofi_session::{Session, SessionOptions};

use super::{STATIC, Scratch, cofi, has_qemu, run};

/// Calls of all kinds: nested, recursive, through pointers, inlined, out of a signal's handler, left by `longjmp`; in two threads.
pub(crate) const CALLS: &str = r#"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
static volatile unsigned sum;
static jmp_buf back;
static inline __attribute__((always_inline)) unsigned mix(unsigned x) { return x * 2654435761u >> 7; }
__attribute__((noinline)) static unsigned leaf(unsigned x) { return mix(x) ^ mix(x + 1); }
__attribute__((noinline)) static unsigned tree(unsigned depth, unsigned x) {
    if (depth == 0) return leaf(x);
    unsigned left = tree(depth - 1, 2 * x);
    return left + tree(depth - 1, 2 * x + 1) + mix(x);
}
static int order(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}
__attribute__((noinline)) static void jumps(int n) {
    sum += leaf(n);
    if (n == 0) longjmp(back, 1);
    jumps(n - 1);
    sum += n;
}
static void handle(int number) { sum += tree(3, number); }
static void *works(void *argument) {
    (void)argument;
    for (int i = 0; i < 6; i++) sum += tree(6, i);
    return 0;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, works, 0);
    signal(SIGUSR1, handle);
    unsigned list[200];
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 200; i++) list[i] = leaf(i * 31 + round);
        qsort(list, 200, sizeof *list, order);
        if (!setjmp(back)) jumps(20);
        sum += tree(7, round);
        raise(SIGUSR1);
    }
    pthread_join(thread, 0);
    return 0;
}
"#;

/// Coroutines that run in calls of their own each time, and switch to each other from different depths.
pub(crate) const TURNS: &str = r#"
#include <ucontext.h>
static ucontext_t contexts[3], back;
static char stacks[3][1 << 16];
static volatile unsigned sum;
__attribute__((noipa)) static void leaf(int n) { for (int i = 0; i < n; i++) sum += i; }
__attribute__((noipa)) static void yields(int me) { leaf(3); swapcontext(&contexts[me], &back); sum += me; }
__attribute__((noipa)) static void deep(int me, int depth) {
    if (depth == 0) yields(me);
    else deep(me, depth - 1);
    leaf(depth);
}
__attribute__((noipa)) static void works(int me) {
    for (int i = 0; i < 40; i++) { leaf(5 * me); deep(me, i % 4); }
    for (;;) swapcontext(&contexts[me], &back);
}
static void one(void) { works(0); }
static void two(void) { works(1); }
static void three(void) { works(2); }
__attribute__((noipa)) static void resumes(int which) { swapcontext(&back, &contexts[which]); leaf(which); }
int main(void) {
    void (*functions[])(void) = {one, two, three};
    for (int i = 0; i < 3; i++) {
        getcontext(&contexts[i]);
        contexts[i].uc_stack.ss_sp = stacks[i];
        contexts[i].uc_stack.ss_size = sizeof stacks[i];
        contexts[i].uc_link = &back;
        makecontext(&contexts[i], functions[i], 0);
    }
    for (int i = 0; i < 123; i++) resumes(i * 7 % 3);
    return 0;
}
"#;

/// A recording of [`CALLS`] in small parts; none without QEMU or a compiler.
pub(crate) fn recording(scratch: &Scratch) -> Option<PathBuf> {
    recording_of(scratch, CALLS)
}

/// The same of another program.
pub(crate) fn recording_of(scratch: &Scratch, source: &str) -> Option<PathBuf> {
    if !has_qemu() {
        return None;
    }
    let source = scratch.write("calls.c", source);
    let program = scratch.compile(&source, &[STATIC, &["-O2", "-g", "-pthread"]].concat())?;
    Some(recording_by_qemu(scratch, &program))
}

/// A recording of a program, in small parts.
pub(crate) fn recording_by_qemu(scratch: &Scratch, program: &Path) -> PathBuf {
    let data = scratch.path("data");
    let mut command = cofi();
    command.args([
        "record",
        "--engine",
        "qemu",
        "--config",
        "psb_period=0",
        "-o",
    ]);
    let ran = run(command.arg(&data).arg("--").arg(program));
    assert_eq!(ran.code(), 0, "{}", ran.stderr);
    data
}

pub(crate) fn with_session(data: &Path, test: impl FnOnce(&Session<'_>, &[u8])) {
    let bytes = std::fs::read(data).expect("the recording");
    let session = Session::new(&bytes, &SessionOptions::beside(data)).expect("a session");
    test(&session, &bytes);
}
