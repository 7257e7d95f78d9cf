#pragma once
// Time of data loading by stage: counts of a stream, and the marks by which code that reads a sample names
// its stage. A thread that reads for a stream has a meter. A StageScope adds its time to the meter of its
// thread, and has no effect on other threads. So a custom data set may name its stages, too:
//
//   { const StageScope reading(Stage::kRead); bytes = read(path); count_read(bytes.size()); }
//   { const StageScope decoding(Stage::kDecode); image = decode(bytes); }

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::data {

/// kCopy: of whole batches into memory from which a device copies.
enum class Stage { kRead, kDecode, kTransform, kCollate, kCopy };
/// How many stages there are: the length of arrays that a Stage indexes.
inline constexpr std::size_t kNumStages = 5;
/// "read", "decode", "transform", "collate", "copy".
std::string_view name_of(Stage stage);

/// Counts of reads by threads.
struct LoadingCounts {
  std::array<double, kNumStages> stage_s = {};  ///< seconds of all threads, by Stage
  double busy_s = 0;                            ///< seconds of all threads in batches, stages included
  std::int64_t samples = 0;
  std::int64_t bytes_read = 0;  ///< from disk or network, where the data set counts it
  std::int64_t cache_hits = 0, cache_misses = 0;
  std::int64_t retries = 0;  ///< reads that were repeated
  std::int64_t skipped = 0;  ///< samples that another one stood in for

  LoadingCounts& operator+=(const LoadingCounts& other);
};

/// Of a stream, since it was opened.
struct LoadingReport {
  LoadingCounts counts;
  std::int64_t batches = 0;      ///< handed over
  double waited_s = 0;           ///< that next() has waited
  double fill = 0;               ///< mean share of the read-ahead that was there when next() was called
  int workers = 0;               ///< at present
  int prefetch = 0;              ///< steps, at present
  std::int64_t share = 0;        ///< samples of a full batch, at present
  std::string last_change = {};  ///< of workers or prefetch by itself, and why; empty: there was none
};

/// The stage in which threads have spent most; empty where no stage was named.
std::string_view slowest_stage(const LoadingCounts& counts);

/// While it lives, this thread's stages and counts go to `counts`. Not to be nested.
class LoadingMeter {
 public:
  explicit LoadingMeter(LoadingCounts& counts);
  ~LoadingMeter();
  LoadingMeter(const LoadingMeter&) = delete;
  LoadingMeter& operator=(const LoadingMeter&) = delete;

 private:
  double began_s_;
};

/// A stage of this thread while it lives. The time of one inside another counts for the inner one only.
class StageScope {
 public:
  explicit StageScope(Stage stage);
  ~StageScope();
  StageScope(const StageScope&) = delete;
  StageScope& operator=(const StageScope&) = delete;

 private:
  Stage stage_;
  StageScope* outer_ = nullptr;
  double began_s_ = 0, inner_s_ = 0;
};

/// Adds to the meter of the calling thread: bytes read, a look-up in a cache, a read that is repeated, a
/// sample that is left out. No effect on a thread without a meter.
void count_read(std::size_t bytes);
void count_cache(bool hit);
void count_retry();
void count_skipped();

}  // namespace trireme::data
