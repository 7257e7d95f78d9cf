#include "cli/top/top_json.h"

#include <nlohmann/json.hpp>

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;
using telemetry::RankView;
using telemetry::RunView;

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

Json json_of(const telemetry::Pressure& pressure) {
  return {{"some", or_null(pressure.some)}, {"full", or_null(pressure.full)}};
}

Json json_of(const telemetry::DiskRate& rate) { return {{"read", rate.read}, {"written", rate.written}}; }

Json json_of(const MemoryUse& memory) {
  Json kinds = Json::object();
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    kinds[name_of(static_cast<MemoryKind>(kind))] = memory.bytes[kind];
  return kinds;
}

Json json_of(const RankView& rank, Spans with_spans) {
  Json json = {{"rank", rank.rank},
               {"pid", rank.pid},
               {"stage", rank.role},
               {"step", rank.step},
               {"steps_per_s", rank.steps_per_s},
               {"action", rank.action},
               {"activity", name_of(rank.activity)},
               {"for_s", rank.for_s},
               {"waits", rank.waits},
               {"stopped", rank.stopped},
               {"operation", rank.operation},
               {"own_share", rank.own_share},
               {"wait_share", rank.wait_share},
               {"data_share", rank.data_share},
               {"own_shares", Json::object()},
               {"cpu", rank.cpu_share < 0 ? Json() : Json(rank.cpu_share)},
               {"loader", {{"fill", or_null(rank.loader_fill)}, {"steps_ahead", rank.loader_depth}}},
               {"rss_bytes", rank.rss_bytes < 0 ? Json() : Json(rank.rss_bytes)},
               {"memory_peak_bytes", json_of(rank.memory)},
               {"device_memory_peak_bytes", json_of(rank.device_memory)},
               {"link_bytes_per_s", rank.sent_per_s},
               {"disk_bytes_per_s", Json::object()}};
  for (std::size_t i = 0; i < telemetry::kNumActivities; ++i)
    json["own_shares"][name_of(static_cast<telemetry::Activity>(i))] = rank.own_shares[i];
  for (std::size_t use = 0; use < kNumDiskUses; ++use)
    json["disk_bytes_per_s"][name_of(static_cast<DiskUse>(use))] = json_of(rank.disk[use]);
  json["disk_bytes_per_s"]["process"] = rank.process_disk ? json_of(*rank.process_disk) : Json();
  if (with_spans == Spans::kNo) return json;
  json["spans"] = Json::array();
  for (const telemetry::ActivitySpan& span : rank.spans) {
    json["spans"].push_back(
        {static_cast<double>(span.begin_ns) * 1e-9, name_of(span.activity), span.waits, span.microbatch});
  }
  return json;
}

}  // namespace

std::string json_of(const RunView& view, Spans spans, int indent) {
  Json json = {{"run", view.run},
               {"host", view.host},
               {"world_size", view.world_size},
               {"at_s", static_cast<double>(view.at_ns) * 1e-9},
               {"window_s", view.window_s},
               {"pressure_percent",
                {{"cpu", json_of(view.pressure.cpu)},
                 {"memory", json_of(view.pressure.memory)},
                 {"io", json_of(view.pressure.io)}}},
               {"straggler", Json()},
               {"ranks", Json::array()}};
  if (const auto found = telemetry::straggler(view)) {
    json["straggler"] = {{"rank", found->rank},           {"activity", name_of(found->activity)},
                         {"action", found->action},       {"cost_share", found->cost},
                         {"longer_share", found->longer}, {"stopped", found->stopped},
                         {"message", describe(*found)}};
  }
  for (const RankView& rank : view.ranks) json["ranks"].push_back(json_of(rank, spans));
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trireme::cli
