//! What several threads use: one at a time, or set once.
#![allow(
    unsafe_code,
    reason = "mutexes of the C library's, and what they protect; each use has its justification"
)]

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::fmt;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

unsafe extern "C" {
    fn pthread_mutex_lock(mutex: *mut Mutex) -> c_int;
    fn pthread_mutex_unlock(mutex: *mut Mutex) -> c_int;
}

/// A `pthread_mutex_t`. All 0 is one of the ordinary kind that nobody has (`PTHREAD_MUTEX_INITIALIZER`).
#[repr(C)]
struct Mutex([u64; 5]);

/// What one thread at a time uses.
pub(crate) struct Lock<T> {
    mutex: UnsafeCell<Mutex>,
    value: UnsafeCell<T>,
}

// SAFETY: whoever has the mutex has the value for itself, whichever thread it is.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self {
            mutex: UnsafeCell::new(Mutex([0; 5])),
            value: UnsafeCell::new(value),
        }
    }

    /// Waits until nobody else has it.
    pub(crate) fn lock(&'static self) -> Held<T> {
        self.hold();
        Held {
            lock: self,
            stays: PhantomData,
        }
    }

    /// As [`Self::lock`], to be ended by [`Self::release`].
    pub(crate) fn hold(&'static self) {
        // SAFETY: it is a mutex for ever, as this is a static. An ordinary one has no way to fail.
        unsafe {
            pthread_mutex_lock(self.mutex.get());
        }
    }

    /// Ends what [`Self::hold`] has begun.
    ///
    /// # Safety
    /// The calling thread (or the one that was copied by fork to be it) has called that, and not called this since.
    pub(crate) unsafe fn release(&'static self) {
        // SAFETY: the caller has it.
        unsafe {
            pthread_mutex_unlock(self.mutex.get());
        }
    }
}

/// A value that is locked as long as this is there. It stays in its thread, which alone may release a mutex.
pub(crate) struct Held<T: 'static> {
    lock: &'static Lock<T>,
    stays: PhantomData<*mut T>,
}

impl<T> Deref for Held<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the mutex.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        // SAFETY: `lock` has held it, and nothing but this releases it.
        unsafe { self.lock.release() }
    }
}

/// A value that is set once, and then stays. (What is dropped with a value in it does not drop that.)
pub(crate) struct Once<T> {
    value: UnsafeCell<MaybeUninit<T>>,
    is_set: AtomicBool,
}

/// Who sets a value, whichever it is, has this meanwhile: that takes a few instructions.
static SETTING: Lock<()> = Lock::new(());

// SAFETY: one thread, whichever it is, sets the value; all others read it, only after that.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

impl<T> Once<T> {
    pub(crate) const fn new() -> Self {
        Self {
            value: UnsafeCell::new(MaybeUninit::uninit()),
            is_set: AtomicBool::new(false),
        }
    }

    #[inline]
    pub(crate) fn get(&self) -> Option<&T> {
        let is_set = self.is_set.load(Ordering::Acquire);
        // SAFETY: once it is set nobody writes it any more.
        is_set.then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }

    /// Sets it, if nobody has; whether this did.
    pub(crate) fn set(&self, value: T) -> bool {
        if self.get().is_some() {
            return false;
        }
        self.set_or_get(value).1
    }

    /// The value, which is made where nobody has set it yet. Several threads may make one: that of the first that is ready stays.
    #[inline]
    pub(crate) fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        match self.get() {
            Some(value) => value,
            None => self.set_or_get(make()).0,
        }
    }

    /// Sets it, if nobody has; the value, and whether it is this one.
    #[cold]
    pub(crate) fn set_or_get(&self, value: T) -> (&T, bool) {
        let setting = SETTING.lock();
        let is_mine = !self.is_set.load(Ordering::Relaxed);
        if is_mine {
            // SAFETY: this thread alone sets values now, and nobody reads this one yet.
            unsafe { (*self.value.get()).write(value) };
            self.is_set.store(true, Ordering::Release);
        }
        drop(setting);
        // SAFETY: it is set.
        (unsafe { (*self.value.get()).assume_init_ref() }, is_mine)
    }
}

impl<T: fmt::Debug> fmt::Debug for Once<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::{Lock, Once};
    use std::boxed::Box;
    use std::string::String;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    #[test]
    fn one_thread_at_a_time_has_it() {
        static COUNT: Lock<u64> = Lock::new(0);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *COUNT.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*COUNT.lock(), 40_000);
    }

    #[test]
    fn who_holds_it_keeps_others_out_until_it_releases_it() {
        static STEPS: Lock<String> = Lock::new(String::new());
        STEPS.hold();
        let other = thread::spawn(|| STEPS.lock().push('b'));
        // It may not have come so far yet: then this finds nothing, and is no failure.
        for _ in 0..1000 {
            assert!(!other.is_finished());
            thread::yield_now();
        }
        // SAFETY: held above.
        unsafe { STEPS.release() };
        other.join().unwrap();
        assert_eq!(*STEPS.lock(), "b");
    }

    #[test]
    fn the_first_that_sets_it_sets_it() {
        let (once, winners) = (Once::new(), AtomicUsize::new(0));
        assert_eq!(once.get(), None);
        thread::scope(|scope| {
            for mine in 0..4_usize {
                let (once, winners) = (&once, &winners);
                scope.spawn(move || {
                    let is_mine = if mine % 2 == 0 {
                        once.set(Box::new(mine))
                    } else {
                        **once.get_or_init(|| Box::new(mine)) == mine
                    };
                    winners.fetch_add(is_mine.into(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(winners.into_inner(), 1);
        let set = **once.get().unwrap();
        assert!(!once.set(Box::new(9)));
        assert_eq!(**once.get_or_init(|| Box::new(9)), set);
    }
}
