#pragma once
// Whether processes grow while they do the same for long: their resident memory and open descriptors, looked
// at again and again. One thread.

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "trireme/base/text.h"

namespace trireme::cli {

struct Usage {
  double at_s = 0;
  std::uint64_t resident_bytes = 0, descriptors = 0;
};

/// Of a process of this user; zeroes where it has ended.
inline Usage usage_of(pid_t pid, double at_s) {
  Usage usage{.at_s = at_s};
  const std::string folder = text("/proc/", pid);
  std::uint64_t pages = 0;
  std::ifstream(folder + "/statm") >> pages >> pages;
  usage.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  std::error_code ended;
  for (std::filesystem::directory_iterator each(folder + "/fd", ended), end; !ended && each != end;
       each.increment(ended))
    ++usage.descriptors;
  return usage;
}

/// One process, which is another one after each start, as it was seen from its start to its end.
struct Life {
  std::string who;
  std::vector<Usage> seen = {};

  /// From a minute of looks on there is something to compare.
  static constexpr double kLeast_s = 60;
  static constexpr std::size_t kMinLooks = 30;
  bool is_long() const {
    return seen.size() >= kMinLooks && seen.back().at_s - seen.front().at_s >= kLeast_s;
  }
  /// The most in the first third of its looks, the least in the last one: whatever goes up and down between
  /// them, a process that does not grow comes back below its first third.
  std::pair<std::uint64_t, std::uint64_t> first_and_last(std::uint64_t Usage::*what) const {
    const auto third = static_cast<std::ptrdiff_t>(seen.size() / 3);
    const auto less = [&](const Usage& a, const Usage& b) { return a.*what < b.*what; };
    return {(*std::max_element(seen.begin(), seen.begin() + third, less)).*what,
            (*std::min_element(seen.end() - third, seen.end(), less)).*what};
  }
  /// A sixteenth and 1 MiB: what an allocator's free lists come to. Descriptors: none.
  std::string growth() const {
    if (!is_long()) return "";
    const auto [memory, memory_last] = first_and_last(&Usage::resident_bytes);
    if (memory_last > memory + memory / 16 + (1 << 20))
      return text(who, " grew: at most ", human_bytes(memory), " in the first third of its life, at least ",
                  human_bytes(memory_last), " in the last");
    const auto [files, files_last] = first_and_last(&Usage::descriptors);
    if (files_last > files)
      return text(who, " keeps descriptors: at most ", files, " in the first third of its life, at least ",
                  files_last, " in the last");
    return "";
  }
};

class Lives {
 public:
  void look(const std::string& who, pid_t pid, double at_s) {
    const Usage usage = usage_of(pid, at_s);
    if (usage.resident_bytes == 0) return;
    Life& life = lives_[pid];
    life.who = who;
    life.seen.push_back(usage);
  }
  /// Of those that have lived long enough.
  std::vector<Life> long_ones() const {
    std::vector<Life> result;
    for (const auto& [pid, life] : lives_) {
      if (life.is_long()) result.push_back(life);
    }
    return result;
  }
  std::size_t count() const { return lives_.size(); }

 private:
  std::map<pid_t, Life> lives_;
};

}  // namespace trireme::cli
