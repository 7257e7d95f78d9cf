#pragma once
// What happens where a sample cannot be decoded: an error, or the next one in order that can stands in for
// it, which is said once per sample, and depends on neither rank nor worker. Thread-safe.

#include <algorithm>
#include <mutex>
#include <set>
#include <string>

#include "trireme/base/error.h"
#include "trireme/base/log.h"
#include "trireme/data/image_folder.h"

namespace trireme::data {

class StandIns {
 public:
  StandIns(Undecodable undecodable, const Log& log) : undecodable_(undecodable), log_(log) {}

  /// What `read` makes of `index`, or of the first one behind it, round the end of `size`, for which it
  /// throws no DataError; `name` is what messages call one.
  template <class Read, class Name>
  auto first_readable(std::int64_t index, std::int64_t size, const Read& read, const Name& name) const {
    for (std::int64_t tried = 0;; ++tried) {
      try {
        return read((index + tried) % size);
      } catch (const DataError& reason) {
        if (undecodable_ == Undecodable::kError)
          throw DataError(text(reason.what(), "; remove it, or set data.undecodable = \"skip\""));
        if (tried + 1 == std::min(kMostInARow, size)) {
          throw DataError(text(reason.what(), "; it is the last of ", tried + 1,
                               " undecodable images in a row: are these the right files?"));
        }
        say_once(reason, name((index + tried + 1) % size));
      }
    }
  }

 private:
  /// More undecodable images than this in a row are no accident.
  static constexpr std::int64_t kMostInARow = 50;

  void say_once(const DataError& reason, const std::string& instead) const {
    const std::lock_guard lock(mutex_);
    if (said_.insert(reason.what()).second) log_.warning(reason.what(), "; ", instead, " stands in for it");
  }

  const Undecodable undecodable_;
  const Log log_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> said_;  ///< under the mutex
};

}  // namespace trireme::data
