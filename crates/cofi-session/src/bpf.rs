//! The code of BPF programs, which perf keeps in the feature BPF_PROG_INFO.
//!
//! Of each program there is the kernel's `bpf_prog_info`, in which pointers are offsets into the data that follow. A program
//! consists of one or several functions; their machine code stands one behind the other.

/// Offsets in `bpf_prog_info` (Linux's `include/uapi/linux/bpf.h`).
const JITED_LEN: usize = 16;
const JITED_INSNS: usize = 24;
const FUNCTIONS: usize = 104;
const LENGTHS: usize = 108;
const ADDRESSES_AT: usize = 112;
const LENGTHS_AT: usize = 120;

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..)?.first_chunk().copied()?))
}

/// Address and code of every function. What lies outside of the bytes is left out.
pub(crate) fn programs(feature: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    let count = u32_at(feature, 0).unwrap_or(0);
    let mut rest = feature.get(4..).unwrap_or_default();
    (0..count)
        .map_while(move |_| {
            let (info_len, data_len) = (u32_at(rest, 0)? as usize, u32_at(rest, 4)? as usize);
            let body = rest.get(16..)?;
            let (info, body) = body.split_at_checked(info_len)?;
            let (data, body) = body.split_at_checked(data_len)?;
            rest = body;
            Some((info, data))
        })
        .flat_map(|(info, data)| functions(info, data).unwrap_or_default())
}

fn functions<'b>(info: &[u8], data: &'b [u8]) -> Option<Vec<(u64, &'b [u8])>> {
    let array = |at: usize| usize::try_from(u64_at(info, at)?).ok();
    let (code_at, code_len) = (array(JITED_INSNS)?, u32_at(info, JITED_LEN)? as usize);
    let mut code = data.get(code_at..code_at.checked_add(code_len)?)?;
    let count = u32_at(info, FUNCTIONS)?.min(u32_at(info, LENGTHS)?) as usize;
    let addresses = data.get(array(ADDRESSES_AT)?..)?.chunks_exact(8);
    let lengths = data.get(array(LENGTHS_AT)?..)?.chunks_exact(4);
    let mut found = Vec::new();
    for (address, len) in addresses.zip(lengths).take(count) {
        let (function, rest) = code.split_at_checked(u32_at(len, 0)? as usize)?;
        code = rest;
        found.push((u64_at(address, 0)?, function));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One program of two functions.
    fn feature() -> Vec<u8> {
        let mut info = vec![0; 128];
        let mut put = |at: usize, bytes: &[u8]| info[at..at + bytes.len()].copy_from_slice(bytes);
        put(JITED_LEN, &5u32.to_le_bytes());
        put(JITED_INSNS, &8u64.to_le_bytes());
        put(FUNCTIONS, &2u32.to_le_bytes());
        put(LENGTHS, &2u32.to_le_bytes());
        put(ADDRESSES_AT, &16u64.to_le_bytes());
        put(LENGTHS_AT, &32u64.to_le_bytes());
        let mut data = vec![0; 8];
        data.extend([1, 2, 3, 4, 5, 0, 0, 0]);
        data.extend(0xffff_ffff_c000_0000u64.to_le_bytes());
        data.extend(0xffff_ffff_c000_1000u64.to_le_bytes());
        data.extend([3, 0, 0, 0, 2, 0, 0, 0]);
        let mut out = 1u32.to_le_bytes().to_vec();
        out.extend((info.len() as u32).to_le_bytes());
        out.extend((data.len() as u32).to_le_bytes());
        out.extend([0; 8]);
        out.extend(info);
        out.extend(data);
        out
    }

    #[test]
    fn functions_of_a_program() {
        let bytes = feature();
        let found: Vec<_> = programs(&bytes).collect();
        assert_eq!(
            found,
            [
                (0xffff_ffff_c000_0000, &[1, 2, 3][..]),
                (0xffff_ffff_c000_1000, &[4, 5][..])
            ]
        );
    }

    #[test]
    fn cut_or_damaged_it_does_no_harm() {
        let bytes = feature();
        for len in 0..bytes.len() {
            assert_eq!(programs(&bytes[..len]).count(), 0);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] = 0xff;
            assert!(programs(&damaged).count() <= 2);
        }
    }
}
