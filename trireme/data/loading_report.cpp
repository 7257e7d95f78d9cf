#include "trireme/data/loading_report.h"

#include <algorithm>
#include <utility>

#include "trireme/base/clock.h"

namespace trireme::data {
namespace {

constexpr std::array<std::string_view, kNumStages> kNames = {"read", "decode", "transform", "collate",
                                                             "copy"};

thread_local LoadingCounts* meter = nullptr;
thread_local StageScope* innermost = nullptr;

double& seconds_of(Stage stage) { return meter->stage_s[static_cast<std::size_t>(stage)]; }

}  // namespace

std::string_view name_of(Stage stage) { return kNames[static_cast<std::size_t>(stage)]; }

LoadingCounts& LoadingCounts::operator+=(const LoadingCounts& other) {
  for (std::size_t i = 0; i < kNumStages; ++i) stage_s[i] += other.stage_s[i];
  busy_s += other.busy_s;
  samples += other.samples;
  bytes_read += other.bytes_read;
  cache_hits += other.cache_hits;
  cache_misses += other.cache_misses;
  retries += other.retries;
  skipped += other.skipped;
  return *this;
}

std::string_view slowest_stage(const LoadingCounts& counts) {
  const auto most = std::max_element(counts.stage_s.begin(), counts.stage_s.end());
  if (*most <= 0) return "";
  return kNames[static_cast<std::size_t>(most - counts.stage_s.begin())];
}

LoadingMeter::LoadingMeter(LoadingCounts& counts) : began_s_(now_s()) { meter = &counts; }

LoadingMeter::~LoadingMeter() {
  meter->busy_s += now_s() - began_s_;
  meter = nullptr;
}

StageScope::StageScope(Stage stage) : stage_(stage) {
  if (meter == nullptr) return;
  outer_ = std::exchange(innermost, this);
  began_s_ = now_s();
}

StageScope::~StageScope() {
  if (meter == nullptr) return;
  const double lasted_s = now_s() - began_s_;
  seconds_of(stage_) += lasted_s - inner_s_;
  innermost = outer_;
  if (outer_ != nullptr) outer_->inner_s_ += lasted_s;
}

void count_read(std::size_t bytes) {
  if (meter != nullptr) meter->bytes_read += static_cast<std::int64_t>(bytes);
}

void count_cache(bool hit) {
  if (meter != nullptr) ++(hit ? meter->cache_hits : meter->cache_misses);
}

void count_retry() {
  if (meter != nullptr) ++meter->retries;
}

void count_skipped() {
  if (meter != nullptr) ++meter->skipped;
}

}  // namespace trireme::data
