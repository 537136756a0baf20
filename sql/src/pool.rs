//! How memory is divided among the parts of a statement.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use datafusion::common::{DataFusionError, Result};
use datafusion::execution::memory_pool::{
    MemoryConsumer, MemoryLimit, MemoryPool, MemoryReservation,
};

/// A pool in which what can write to files leaves something to what cannot.
///
/// Those that can have equal shares. In DataFusion's own pool of this kind (`FairSpillPool`) these are shares of everything: then two sorts that are full
/// leave nothing for merging what they have written, and the statement fails.
#[derive(Debug)]
pub(crate) struct SharedPool {
    size: usize,
    used: Mutex<Used>,
}

#[derive(Debug, Default)]
struct Used {
    /// How many there are that can write to files.
    spilling: usize,
    /// What these have, and what the others have.
    by_spilling: usize,
    by_others: usize,
}

impl SharedPool {
    pub(crate) fn new(size: usize) -> Self {
        Self {
            size,
            used: Mutex::default(),
        }
    }

    /// (It holds numbers, which are right whoever has panicked.)
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much is kept for those that cannot write to files.
    const fn kept(&self) -> usize {
        self.size / 4
    }
}

impl fmt::Display for SharedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} MiB", self.size >> 20)
    }
}

impl MemoryPool for SharedPool {
    fn name(&self) -> &str {
        "shared"
    }

    fn register(&self, consumer: &MemoryConsumer) {
        self.used().spilling += usize::from(consumer.can_spill());
    }

    fn unregister(&self, consumer: &MemoryConsumer) {
        self.used().spilling -= usize::from(consumer.can_spill());
    }

    fn grow(&self, reservation: &MemoryReservation, additional: usize) {
        let mut used = self.used();
        match reservation.consumer().can_spill() {
            true => used.by_spilling += additional,
            false => used.by_others += additional,
        }
    }

    fn shrink(&self, reservation: &MemoryReservation, shrink: usize) {
        let mut used = self.used();
        match reservation.consumer().can_spill() {
            true => used.by_spilling -= shrink,
            false => used.by_others -= shrink,
        }
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        let mut used = self.used();
        let can_spill = reservation.consumer().can_spill();
        let available = if can_spill {
            let shared = self.size.saturating_sub(used.by_others.max(self.kept()));
            let share = shared / used.spilling.max(1);
            share.saturating_sub(reservation.size())
        } else {
            self.size.saturating_sub(used.by_others + used.by_spilling)
        };
        if additional > available {
            let name = reservation.consumer().name();
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{name} wants {additional} bytes more, and {available} of {self} are left for it"
            )));
        }
        match can_spill {
            true => used.by_spilling += additional,
            false => used.by_others += additional,
        }
        Ok(())
    }

    fn reserved(&self) -> usize {
        let used = self.used();
        used.by_spilling + used.by_others
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::SharedPool;
    use datafusion::execution::memory_pool::{MemoryConsumer, MemoryPool};
    use std::sync::Arc;

    #[test]
    fn sorts_that_are_full_leave_a_quarter() {
        let pool: Arc<dyn MemoryPool> = Arc::new(SharedPool::new(800));
        let sort = || {
            MemoryConsumer::new("sort")
                .with_can_spill(true)
                .register(&pool)
        };
        let (one, other) = (sort(), sort());
        assert!(one.try_grow(301).is_err());
        one.try_grow(300).expect("its share");
        other.try_grow(300).expect("its share");
        let merge = MemoryConsumer::new("merge").register(&pool);
        merge.try_grow(200).expect("what is kept");
        assert!(merge.try_grow(1).is_err() && pool.reserved() == 800);
        // What others have beyond that is no sort's.
        drop((one, other));
        merge.try_grow(400).expect("all is free");
        let one = sort();
        assert!(one.try_grow(201).is_err());
        one.try_grow(200).expect("what is left");
        drop((one, merge));
        assert_eq!(pool.reserved(), 0);
    }
}
