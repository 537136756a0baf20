//! The accessors of a register's fields, the same for every register type.

/// A field's bits as what it is: a flag or a number.
macro_rules! field_type {
    ($value:expr, bool) => {
        $value != 0
    };
    ($value:expr, u64) => {
        $value
    };
}

/// For each field `x` of a register `struct Type(pub u64)`: `x()` and `with_x()`.
macro_rules! accessors {
    ($( $(#[$doc:meta])* $field:ident $with:ident $name:literal $low:literal $high:literal $ty:ident; )*) => {
        $(
            $(#[$doc])*
            #[must_use]
            pub const fn $field(self) -> $ty {
                $crate::spec::fields::field_type!(
                    (self.0 >> $low) & (u64::MAX >> (64 - ($high - $low))),
                    $ty
                )
            }
            #[doc = concat!("The value with ", $name, " set to `value` (which is cut to the field's width).")]
            #[must_use]
            pub const fn $with(self, value: $ty) -> Self {
                let mask = u64::MAX >> (64 - ($high - $low));
                Self(self.0 & !(mask << $low) | (value as u64 & mask) << $low)
            }
        )*
    };
}

pub(crate) use {accessors, field_type};
