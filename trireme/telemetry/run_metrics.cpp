#include "trireme/telemetry/run_metrics.h"

#include <filesystem>

#include "trireme/base/prometheus.h"
#include "trireme/base/text.h"

namespace trireme::telemetry {
namespace {

constexpr const char* kCounter = PrometheusText::kCounter;
constexpr const char* kGauge = PrometheusText::kGauge;

/// Writes one value per rank.
template <class Value>
void of_ranks(PrometheusText& out, const RunSample& sample, std::string_view name, const char* type,
              const char* help, Value&& value) {
  out.begin(name, type, help);
  for (const RankSample& rank : sample.ranks) out.value({{"rank", text(rank.status.rank)}}, value(rank));
}

void add_times(PrometheusText& out, const RunSample& sample) {
  out.begin("rank_seconds_total", kCounter,
            "Time of the main thread by activity; waits: \"yes\" for the part that waited for other ranks.");
  for (const RankSample& rank : sample.ranks) {
    const std::string number = text(rank.status.rank);
    for (std::size_t i = 0; i < kNumActivities; ++i) {
      const char* activity = name_of(static_cast<Activity>(i));
      const Usage& usage = rank.usage;
      out.value({{"rank", number}, {"activity", activity}, {"waits", "no"}},
                static_cast<double>(usage.spent_ns[i] - usage.waited_ns[i]) * 1e-9);
      out.value({{"rank", number}, {"activity", activity}, {"waits", "yes"}},
                static_cast<double>(usage.waited_ns[i]) * 1e-9);
    }
  }
}

void add_memory(PrometheusText& out, const RunSample& sample) {
  of_ranks(out, sample, "rank_resident_bytes", kGauge, "Resident memory; -1: not known.",
           [](const RankSample& rank) { return rank.process.rss_bytes; });
  out.begin("rank_memory_peak_bytes", kGauge,
            "Memory by kind when the total was largest; place: \"host\" or \"device\".");
  for (const RankSample& rank : sample.ranks) {
    for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind) {
      const std::string number = text(rank.status.rank);
      const char* name = name_of(static_cast<MemoryKind>(kind));
      out.value({{"rank", number}, {"place", "host"}, {"kind", name}}, rank.usage.memory.bytes[kind]);
      out.value({{"rank", number}, {"place", "device"}, {"kind", name}},
                rank.usage.device_memory.bytes[kind]);
    }
  }
}

void add_disk(PrometheusText& out, const RunSample& sample) {
  out.begin("rank_disk_bytes_total", kCounter,
            "Bytes read from files and written to them, by use; \"process\": all, as the kernel counts.");
  for (const RankSample& rank : sample.ranks) {
    const auto both = [&](const char* use, auto read, auto written) {
      const std::string number = text(rank.status.rank);
      out.value({{"rank", number}, {"use", use}, {"direction", "read"}}, read);
      out.value({{"rank", number}, {"use", use}, {"direction", "write"}}, written);
    };
    for (std::size_t use = 0; use < kNumDiskUses; ++use)
      both(name_of(static_cast<DiskUse>(use)), rank.usage.disk[use].read, rank.usage.disk[use].written);
    if (rank.process.disk_read_bytes >= 0)
      both("process", rank.process.disk_read_bytes, rank.process.disk_written_bytes);
  }
}

void add_pressure(PrometheusText& out, const HostPressure& pressure) {
  out.begin("host_pressure_percent", kGauge,
            "Time of the last 10 s in which some or all processes of the host waited for a resource.");
  const auto both = [&](const char* resource, const Pressure& of) {
    if (of.some) out.value({{"resource", resource}, {"processes", "some"}}, *of.some);
    if (of.full) out.value({{"resource", resource}, {"processes", "all"}}, *of.full);
  };
  both("cpu", pressure.cpu);
  both("memory", pressure.memory);
  both("io", pressure.io);
}

}  // namespace

std::string metrics_text(const RunSample& sample, const RunView& view) {
  PrometheusText out("trireme_");
  out.begin("run_ranks", kGauge, "Ranks of the run on this host.");
  const std::string name = std::filesystem::path(view.run).filename().string();
  out.value({{"run", name}, {"host", sample.host}}, sample.ranks.size());
  of_ranks(out, sample, "rank_step", kCounter, "The step that the rank is in.",
           [](const RankSample& rank) { return rank.status.step; });
  add_times(out, sample);
  of_ranks(out, sample, "rank_sent_bytes_total", kCounter,
           "Bytes of tensors given to operations between ranks.",
           [](const RankSample& rank) { return rank.usage.sent_bytes; });
  of_ranks(out, sample, "rank_loader_fill_total", kCounter,
           "Shares of the read-ahead that steps found, added up; divide by rank_loader_steps_total.",
           [](const RankSample& rank) { return rank.usage.loader_fill; });
  of_ranks(out, sample, "rank_loader_steps_total", kCounter, "Steps in that sum.",
           [](const RankSample& rank) { return rank.usage.loader_batches; });
  of_ranks(out, sample, "rank_cpu_seconds_total", kCounter, "Processor time of the process; -1: not known.",
           [](const RankSample& rank) { return rank.process.cpu_s; });
  add_memory(out, sample);
  add_disk(out, sample);
  add_pressure(out, sample.pressure);
  out.begin("straggler_cost", kGauge,
            "Share of the time that the slowest rank costs, since the last reading; none: no straggler.");
  if (const auto found = straggler(view)) {
    out.value({{"rank", text(found->rank)}, {"activity", name_of(found->activity)}}, found->cost);
  }
  return out.take();
}

}  // namespace trireme::telemetry
