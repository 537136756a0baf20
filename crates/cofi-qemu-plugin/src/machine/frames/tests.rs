//! Where handlers cannot be.

use super::super::state::MadeState;
use super::*;

const TABLE: (u64, u32) = (0xffff_8000_0000_0000, 0xfff);

/// What was looked at in 64-bit mode: handlers at these addresses.
fn handlers(known: &[u64]) -> Handlers {
    let made = MadeState::new(0, false, TABLE);
    let mut handlers = Handlers::new();
    handlers.table = made.state().idt();
    handlers.mode = Some(Mode::Long);
    handlers.set_known(known.iter().copied());
    handlers
}

#[test]
fn no_handler_is_outside_of_where_they_are() {
    let handlers = handlers(&[0x1000, 0x1040, 0x2000]);
    let cases = [
        (0xfff, true),
        (0x1000, false),
        (0x1020, false),
        (0x2000, false),
        (0x2001, true),
    ];
    for (ip, is_elsewhere) in cases {
        let made = MadeState::new(ip, false, TABLE);
        assert_eq!(
            handlers.is_elsewhere(made.state().mode(), made.state()),
            is_elsewhere,
            "{ip:x}"
        );
    }
}

#[test]
fn another_table_is_looked_at() {
    let known = handlers(&[0x1000]);
    assert!(known.is_elsewhere(Mode::Long, MadeState::new(0x3000, false, TABLE).state()));
    for (is_real, table) in [
        (true, TABLE),
        (false, (TABLE.0 + 0x1000, TABLE.1)),
        (false, (TABLE.0, 0x1ff)),
    ] {
        let made = MadeState::new(0x3000, is_real, table);
        assert!(
            !known.is_elsewhere(made.state().mode(), made.state()),
            "{is_real} {table:x?}"
        );
    }
    // Nobody has looked yet, or found none.
    let made = MadeState::new(0x3000, false, TABLE);
    assert!(!handlers(&[]).is_elsewhere(made.state().mode(), made.state()));
    assert!(!Handlers::new().is_elsewhere(made.state().mode(), made.state()));
}
