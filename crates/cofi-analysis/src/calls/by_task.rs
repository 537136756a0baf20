//! What is kept of each thread, where the same thread most often comes again.

use cofi_session::Task;
use rustc_hash::FxHashMap;

/// Something for each thread. The one that was asked for last is found without a search.
#[derive(Debug)]
pub struct ByTask<T> {
    last: Option<(Task, T)>,
    others: FxHashMap<Task, T>,
}

impl<T> Default for ByTask<T> {
    fn default() -> Self {
        Self {
            last: None,
            others: FxHashMap::default(),
        }
    }
}

impl<T> ByTask<T> {
    /// What is kept of a thread, if there is any.
    #[inline]
    pub fn get_mut(&mut self, task: Task) -> Option<&mut T> {
        if self.last.as_ref().is_none_or(|(last, _)| *last != task) {
            let found = self.others.remove(&task)?;
            self.put(task, found);
        }
        self.last.as_mut().map(|(_, found)| found)
    }

    /// The same, or something new.
    #[inline]
    pub fn get_or_default(&mut self, task: Task) -> &mut T
    where
        T: Default,
    {
        if self.last.as_ref().is_none_or(|(last, _)| *last != task) {
            let found = self.others.remove(&task).unwrap_or_default();
            self.put(task, found);
        }
        &mut self.last.get_or_insert_with(|| (task, T::default())).1
    }

    fn put(&mut self, task: Task, found: T) {
        if let Some((task, before)) = self.last.replace((task, found)) {
            self.others.insert(task, before);
        }
    }

    /// Takes out what is kept of a thread.
    pub fn remove(&mut self, task: Task) -> Option<T> {
        match self.last.take_if(|(last, _)| *last == task) {
            Some((_, found)) => Some(found),
            None => self.others.remove(&task),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own() {
        let mut kept = ByTask::<Vec<u32>>::default();
        let task = |tid| Task { pid: 1, tid };
        for tid in [1, 1, 2, 3, 1, 2] {
            kept.get_or_default(task(tid)).push(tid);
        }
        assert_eq!(kept.get_mut(task(3)), Some(&mut vec![3]));
        assert_eq!(kept.get_mut(task(4)), None);
        assert_eq!(kept.remove(task(1)), Some(vec![1; 3]));
        assert_eq!(kept.remove(task(1)), None);
        assert_eq!(kept.remove(task(3)), Some(vec![3]));
        assert_eq!(kept.remove(task(2)), Some(vec![2; 2]));
    }
}
