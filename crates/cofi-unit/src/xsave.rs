//! stand-in
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
/// stand-in
pub struct XsaveArea;
