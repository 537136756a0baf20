//! Summaries and views of a decoded flow
