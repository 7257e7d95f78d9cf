#include "trireme/train/report/run_trace.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <span>

#include "trireme/base/clock.h"
#include "trireme/base/error.h"
#include "trireme/base/files.h"
#include "trireme/base/host.h"
#include "trireme/checkpoint/training_checkpoint.h"
#include "trireme/comm/clock_offset.h"
#include "trireme/telemetry/trace_file.h"
#include "trireme/train/report/run_timeline.h"
#include "trireme/train/run/internal/on_main.h"
#include "trireme/train/run/run_folder.h"
#include "trireme/train/step/trainer.h"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMessageBytes = std::int64_t{16} << 20;

void send_text(comm::Group& group, const std::string& text, int to) {
  at::Tensor length = at::empty({1}, at::kLong);
  *length.mutable_data_ptr<std::int64_t>() = static_cast<std::int64_t>(text.size());
  group.send(length, to);
  for (std::size_t begin = 0; begin < text.size(); begin += kMessageBytes) {
    const std::string piece = text.substr(begin, kMessageBytes);
    at::Tensor message = at::empty({static_cast<std::int64_t>(piece.size())}, at::kByte);
    std::memcpy(message.mutable_data_ptr(), piece.data(), piece.size());
    group.send(message, to);
  }
}

std::string receive_text(comm::Group& group, int from) {
  at::Tensor length = at::empty({1}, at::kLong);
  group.recv(length, from);
  std::string text;
  for (std::int64_t left = *length.const_data_ptr<std::int64_t>(); left > 0;) {
    at::Tensor message = at::empty({std::min(left, kMessageBytes)}, at::kByte);
    group.recv(message, from);
    text.append(static_cast<const char*>(message.const_data_ptr()),
                static_cast<std::size_t>(message.numel()));
    left -= message.numel();
  }
  return text;
}

fs::path path_of_trace(const RunConfig& config) { return config.run_folder() / config.run.trace; }

/// "trace.json" and "rank1" -> "trace.rank1.json"
fs::path path_beside(const fs::path& whole, const std::string& word) {
  return whole.parent_path() / text(whole.stem().string(), ".", word, whole.extension().string());
}

/// Steps of the newest checkpoint, from its folder's name (step-00000120); 0: no checkpoint. If it is
/// damaged, the run continues from an earlier one.
std::int64_t steps_of_newest(const RunConfig& config, comm::Context& context) {
  std::string steps = "0";
  on_main(context, [&] {
    const auto all = checkpoint::list_checkpoints(RunFolder{config.run_folder()}.checkpoints());
    if (all.empty()) return;
    const std::string name = all.back().filename().string();
    steps = name.substr(name.find('-') + 1);
  });
  return std::stoll(context.world().all_gather_text(steps).front());
}

double in_ms(double seconds) { return std::round(seconds * 1e5) / 1e2; }

}  // namespace

telemetry::TraceOptions trace_options(const RunOptions& options) {
  telemetry::TraceOptions result;
  const std::string& steps = options.trace_steps;
  if (steps.empty() && options.trace.empty() && !options.timeline.empty()) {
    // Skips the first steps, in which memory is allocated and connections are opened.
    result.first_step = 3;
    result.last_step = 5;
  }
  if (steps.empty()) return result;
  require(!options.trace.empty() || !options.timeline.empty(), "run.trace_steps = \"", steps,
          "\" limits a trace, but none is asked for: set run.trace, or use --trace");
  const char* end = steps.data() + steps.size();
  const auto first = std::from_chars(steps.data(), end, result.first_step);
  const bool has_colon = first.ec == std::errc() && first.ptr != end && *first.ptr == ':';
  const auto last = has_colon ? std::from_chars(first.ptr + 1, end, result.last_step) : first;
  require(has_colon && last.ec == std::errc() && last.ptr == end && result.first_step >= 1 &&
              result.first_step <= result.last_step,
          "run.trace_steps = \"", steps,
          "\" is no span of steps: expected FIRST:LAST, such as \"100:120\", from 1 on");
  return result;
}

RunTrace::RunTrace(const ParallelPlan& plan, comm::Context& context, RunStart start)
    : config_(plan.config()), context_(context), path_(path_of_trace(config_)) {
  if (config_.run.trace.empty() && config_.run.timeline.empty()) return;
  if (start == RunStart::kResume) steps_before_ = steps_of_newest(config_, context);
  telemetry::TraceOptions options = plan.trace();
  if (config_.run.trace.empty() && config_.run.trace_steps.empty()) {
    options.first_step += steps_before_;
    options.last_step += steps_before_;
  }
  first_clock_ = last_clock_ = comm::measure_clock_offset(context.world(), now_ns);
  trace_ = std::make_unique<telemetry::Trace>(options);
  context_.set_trace(trace_.get());
}

RunTrace::~RunTrace() {
  if (!trace_) return;
  context_.set_trace(nullptr);
  write_own_part();
}

std::string RunTrace::part() const {
  return telemetry::trace_part(*trace_, {.rank = context_.rank(),
                                         .host = host_name(),
                                         .clock = telemetry::AlignedClock(first_clock_, last_clock_)});
}

void RunTrace::discard() {
  if (trace_) context_.set_trace(nullptr);
  trace_.reset();
}

void RunTrace::write_timeline(const Trainer& trainer) {
  const RunTimeline timeline =
      timeline_of(trainer, context_, *trace_, telemetry::AlignedClock(first_clock_, last_clock_));
  if (!context_.is_main()) return;
  const fs::path path = config_.run_folder() / config_.run.timeline;
  try {
    if (timeline.page.empty()) throw DataError("none of its steps was traced; run.trace_steps says which");
    make_way_to(path);
    write_file_atomic(path, timeline.page);
    context_.log().info("wrote the timeline ", path.string(), ": of ", timeline.steps,
                        timeline.steps == 1 ? " step" : " steps", " the median took ",
                        in_ms(timeline.measured_s), " ms, and simulated with the mean times of its actions ",
                        in_ms(timeline.simulated_s), " ms");
  } catch (const DataError& error) {
    context_.log().warning("no timeline: ", error.what());
  }
}

void RunTrace::finish(const Trainer& trainer) {
  if (!trace_) return;
  context_.set_trace(nullptr);
  last_clock_ = comm::measure_clock_offset(context_.world(), now_ns);
  if (trace_->num_dropped() > 0) {
    context_.log().warning("the trace is full: it holds the first ", telemetry::num_spans(*trace_),
                           " spans and ", trace_->num_dropped(),
                           " later ones were dropped; run.trace_steps limits it");
  }
  if (!config_.run.timeline.empty()) write_timeline(trainer);
  if (!config_.run.trace.empty()) {
    if (context_.is_main()) {
      write_whole();
    } else {
      send_text(context_.world(), part(), 0);
    }
  }
  trace_.reset();
}

/// Makes the folder of the next file, which is below the run's folder.
void RunTrace::make_way_to(const fs::path& path) const {
  const fs::path root = config_.run_folder();
  try {
    require_no_links(root, path.lexically_relative(root));
  } catch (const InvalidArgument& error) {  // a run does not fail because of a trace
    throw DataError(error.what());
  }
  make_folder(path.parent_path());
  keep_earlier(path);
}

/// Renames a file that the steps before a resume have left.
void RunTrace::keep_earlier(const fs::path& path) const {
  if (steps_before_ == 0 || !fs::exists(path)) return;
  const std::string until = text("until-step-", steps_before_);
  fs::path kept = path_beside(path, until);
  for (int number = 2; fs::exists(kept); ++number) kept = path_beside(path, text(until, ".", number));
  std::error_code error;
  fs::rename(path, kept, error);
  if (error)
    throw DataError(text("cannot rename ", path.string(), " to ", kept.string(), ": ", error.message()));
}

/// Receives every part even if writing fails, as the other ranks wait for that.
void RunTrace::write_whole() {
  int next = 1;
  const auto receive_next = [&] { return receive_text(context_.world(), next++); };
  try {
    make_way_to(path_);
    write_file_atomic(path_, [&](const FileSink& sink) {
      const auto write = [&](std::string_view piece) {
        const telemetry::OwnWork work(context_.status(), "writing the trace " + path_.string());
        sink(std::as_bytes(std::span(piece)));
      };
      write(telemetry::kTraceBegin + part());
      while (next < context_.world_size()) write(telemetry::kTraceSeparator + receive_next());
      write(telemetry::kTraceEnd);
    });
    context_.log().info("wrote the trace ", path_.string());
  } catch (const DataError& error) {
    context_.log().warning("no trace: ", error.what());
    while (next < context_.world_size()) receive_next();
  }
}

void RunTrace::write_own_part() const {
  if (config_.run.trace.empty() || telemetry::num_spans(*trace_) == 0) return;
  const fs::path path = path_beside(path_, text("rank", context_.rank()));
  try {
    make_way_to(path);
    write_file_atomic(path, telemetry::kTraceBegin + part() + telemetry::kTraceEnd);
    context_.log().info("the run did not end well; this rank's part of the trace is in ", path.string());
  } catch (const std::exception& error) {
    context_.log().warning("no trace of this rank: ", error.what());
  }
}

}  // namespace trireme::train
