//! Records as the kernel makes them, without the trailer that tells who, when and where.

use super::{Bytes, Mmap2, Task};
use crate::{PerfTime, WriteError};

/// COMM.
pub(super) fn comm(task: Task, name: &[u8]) -> Bytes {
    let name = &name[..name.len().min(15)];
    let mut body = Bytes::default();
    body.u32(task.pid).u32(task.tid).text(name, 8);
    body
}

/// MMAP2, with its misc bits.
pub(super) fn mmap2(task: Task, map: &Mmap2<'_>) -> Result<(u16, Bytes), WriteError> {
    if map.path.len() > 4095 || map.path.contains(&0) {
        return Err(WriteError::Path {
            len: map.path.len(),
        });
    }
    let mut body = Bytes::default();
    body.u32(task.pid)
        .u32(task.tid)
        .u64s(&[map.start, map.len, map.pgoff])
        .u32(map.device.0)
        .u32(map.device.1)
        .u64s(&[map.inode, 0])
        .u32(map.prot)
        .u32(2) // MAP_PRIVATE
        .text(map.path, 8);
    // PERF_RECORD_MISC_KERNEL or _USER.
    let misc = if task.pid == u32::MAX { 1 } else { 2 };
    Ok((misc, body))
}

/// FORK or EXIT.
pub(super) fn fork(task: Task, parent: Task, time: PerfTime) -> Bytes {
    let mut body = Bytes::default();
    body.u32(task.pid)
        .u32(parent.pid)
        .u32(task.tid)
        .u32(parent.tid)
        .u64(time.0);
    body
}
