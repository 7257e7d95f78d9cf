#pragma once
// Sleeping on a word of memory that processes share. The word has to be in memory that all of them map; the
// calls work between processes and between threads of one. Source: futex(2).

#include <atomic>
#include <cstdint>

namespace trireme::wire {

/// Sleeps while `word` holds `expected`, at most `timeout_s` seconds. May return early for no reason.
void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, double timeout_s);

/// Wakes all threads that sleep on `word`.
void futex_wake_all(const std::atomic<std::uint32_t>& word);

}  // namespace trireme::wire
