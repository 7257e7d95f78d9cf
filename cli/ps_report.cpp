#include "cli/ps_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "cli/text_table.h"
#include "trireme/base/text.h"

namespace trireme::cli {
namespace {

using Json = nlohmann::ordered_json;
using ps::ClusterReport;
using ps::ClusterStatus;
using ps::ServerStatus;

const char* name_of(ps::ServerEntry::State state) {
  switch (state) {
    case ps::ServerEntry::State::kUp:
      return "up";
    case ps::ServerEntry::State::kLeaving:
      return "leaving";
    case ps::ServerEntry::State::kDown:
      return "down";
    case ps::ServerEntry::State::kGone:
      break;
  }
  return "gone";
}

const char* kind_of(const ps::TableSpec& spec) {
  return spec.kind == ps::TableKind::kSparse ? "sparse" : "dense";
}

/// Elements of a table; of a row if the table is sparse.
std::uint64_t elements_of(const ps::TableSpec& spec) {
  return spec.kind == ps::TableKind::kSparse ? spec.rows.elements : spec.num_elements;
}

std::string staleness_of(const ps::TableSpec& table) {
  return table.staleness == ps::kAsynchronous ? "none" : std::to_string(table.staleness);
}

std::uint64_t sum_of_rejected(const ServerStatus& status) {
  std::uint64_t sum = 0;
  for (const auto& [why, count] : status.held.counts.rejected) sum += count;
  return sum;
}

/// Invalid bytes, or an invalid sender: `refused: wrong secret`, "bad frame: magic".
std::uint64_t frames_rejected(const ps::NamedCounts& channels) {
  std::uint64_t sum = 0;
  for (const auto& [what, count] : channels)
    sum += what.starts_with("refused: ") || what.starts_with("bad frame: ") ? count : 0;
  return sum;
}

ps::Version highest_version(const ServerStatus& status) {
  const ps::HeldStatus& held = status.held;
  return std::max({held.primary.highest_version, held.backup.highest_version, held.learner.highest_version});
}

/// Maximum of the server's own view and that of its predecessors in chains. The last server of a chain has no
/// view of its lag.
ps::Version most_lag(const ClusterReport& report, ps::ServerId id) {
  ps::Version most = 0;
  for (const auto& [other, server] : report.servers) {
    if (!server.status) continue;
    const ps::HeldStatus& held = server.status->held;
    if (other == id)
      most = std::max({most, held.primary.most_lag, held.backup.most_lag, held.feeding.most_lag});
    if (const auto found = held.lag.find(id); found != held.lag.end()) most = std::max(most, found->second);
  }
  return most;
}

const ClusterReport::Server* seen(const ClusterReport& report, ps::ServerId id) {
  const auto found = report.servers.find(id);
  return found == report.servers.end() ? nullptr : &found->second;
}

std::string listed(const std::vector<ps::PartitionId>& partitions, std::uint32_t num) {
  constexpr std::size_t kShown = 16;
  std::vector<std::string> words;
  for (std::size_t i = 0; i < std::min(partitions.size(), kShown); ++i)
    words.push_back(std::to_string(partitions[i]));
  return join(words) + (num > words.size() ? ", ..." : "");
}

void print_servers(std::ostream& out, const ClusterReport& report) {
  TextTable table = {.columns = std::vector<Align>(16, Align::kRight), .rows = {}};
  table.columns[0] = table.columns[1] = table.columns[2] = table.columns[3] = Align::kLeft;
  table.rows.push_back({"server", "host", "address", "state", "weight", "primary", "backup", "learner",
                        "version", "lag", "held", "rows", "waiting", "pushes", "pulls", "refused"});
  std::vector<std::string> troubles;
  for (const ps::PlacedServer& server : report.cluster->servers) {
    const ps::ServerEntry& entry = server.entry;
    std::vector<std::string> row = {entry.name,           entry.host,           entry.address,
                                    name_of(entry.state), text(entry.weight),   text(server.primaries),
                                    text(server.backups), text(server.learners)};
    const ClusterReport::Server* answer = seen(report, entry.id);
    if (answer != nullptr && answer->status) {
      const ServerStatus& status = *answer->status;
      for (const std::string& cell :
           {text(highest_version(status)), text(most_lag(report, entry.id)), human_bytes(status.held.bytes),
            text(status.held.rows), text(status.held.queued_items), text(status.held.counts.pushes),
            text(status.held.counts.pulls),
            text(sum_of_rejected(status) + status.rejected_messages + frames_rejected(status.channels))})
        row.push_back(cell);
    } else if (answer != nullptr) {
      troubles.push_back(text("no status from ", entry.name, " at ", entry.address, ": ", answer->trouble));
    }
    table.rows.push_back(row);
  }
  print(out, table);
  for (const std::string& trouble : troubles) out << trouble << "\n";
}

void print_text(std::ostream& out, const ClusterReport& report) {
  const ClusterStatus& cluster = *report.cluster;
  out << "map version " << cluster.map_version << ", " << cluster.num_partitions << " partitions of "
      << cluster.num_replicas << " replicas, " << cluster.num_servers << " servers, " << cluster.num_workers
      << " workers, " << cluster.num_tables << " tables\n";
  if (cluster.num_unplaced > 0) out << cluster.num_unplaced << " partitions are not placed yet\n";
  if (cluster.num_not_whole > 0)
    out << cluster.num_not_whole
        << " partitions are not whole: " << listed(cluster.not_whole, cluster.num_not_whole) << "\n";
  if (cluster.num_lost > 0) {
    std::vector<ps::PartitionId> lost;
    for (const ps::PartitionVersion& each : cluster.lost) lost.push_back(each.partition);
    out << cluster.num_lost << " partitions are lost: " << listed(lost, cluster.num_lost) << "\n";
  }
  if (!cluster.servers.empty()) {
    out << "\n";
    print_servers(out, report);
  }
  if (cluster.tables.empty()) return;
  out << "\n";
  TextTable table = {.columns = {Align::kLeft, Align::kLeft, Align::kLeft, Align::kRight, Align::kRight,
                                 Align::kLeft, Align::kLeft},
                     .rows = {{"table", "kind", "optimizer", "elements", "staleness", "pushed", "pulled"}}};
  for (const ps::TableSpec& spec : cluster.tables)
    table.rows.push_back({spec.name, kind_of(spec), spec.optimizer.name, text(elements_of(spec)),
                          staleness_of(spec), spec.compression.push, spec.compression.pull});
  print(out, table);
}

Json json_of(const ServerStatus& status) {
  const ps::HeldStatus& held = status.held;
  Json rejected = Json::object();
  for (const auto& [why, count] : held.counts.rejected) rejected[std::string(ps::name_of(why))] = count;
  return {{"map_version", status.map_version},
          {"highest_version", highest_version(status)},
          {"rows", held.rows},
          {"elements", held.elements},
          {"bytes", held.bytes},
          {"pushes", held.counts.pushes},
          {"pulls", held.counts.pulls},
          {"records", held.counts.records},
          {"parked_pulls", held.parked_pulls},
          {"queued_items", held.queued_items},
          {"queued_bytes", held.queued_bytes},
          {"requests_refused", rejected},
          {"messages_refused", status.rejected_messages},
          {"frames_refused", frames_rejected(status.channels)},
          {"bytes_copied", status.bytes_copied},
          {"channels", status.channels}};
}

Json json_of(const ClusterReport& report) {
  const ClusterStatus& cluster = *report.cluster;
  Json json = {{"map_version", cluster.map_version},
               {"partitions", cluster.num_partitions},
               {"replicas", cluster.num_replicas},
               {"unplaced", cluster.num_unplaced},
               {"takeovers", cluster.takeovers},
               {"messages_refused", cluster.rejected_messages},
               {"frames_refused", frames_rejected(cluster.channels)}};
  json["not_whole"] = {{"count", cluster.num_not_whole}, {"partitions", cluster.not_whole}};
  json["lost"] = {{"count", cluster.num_lost}, {"partitions", Json::array()}};
  for (const ps::PartitionVersion& each : cluster.lost)
    json["lost"]["partitions"].push_back({{"partition", each.partition}, {"version", each.version}});
  json["workers"] = Json::array();
  for (const ps::WorkerEntry& worker : cluster.workers) json["workers"].push_back(worker.life.worker);
  json["tables"] = Json::array();
  for (const ps::TableSpec& spec : cluster.tables)
    json["tables"].push_back(
        {{"name", spec.name},
         {"kind", kind_of(spec)},
         {"optimizer", spec.optimizer.name},
         {"elements", elements_of(spec)},
         {"staleness", spec.staleness == ps::kAsynchronous ? Json(-1) : Json(spec.staleness)},
         {"push_codec", spec.compression.push},
         {"pull_codec", spec.compression.pull}});
  json["servers"] = Json::array();
  for (const ps::PlacedServer& server : cluster.servers) {
    const ps::ServerEntry& entry = server.entry;
    Json row = {{"name", entry.name},
                {"host", entry.host},
                {"address", entry.address},
                {"state", name_of(entry.state)},
                {"weight", entry.weight},
                {"primary", server.primaries},
                {"backup", server.backups},
                {"learner", server.learners},
                {"lag", most_lag(report, entry.id)}};
    if (const ClusterReport::Server* answer = seen(report, entry.id)) {
      if (answer->status)
        row["status"] = json_of(*answer->status);
      else
        row["trouble"] = answer->trouble;
    }
    json["servers"].push_back(row);
  }
  return json;
}

}  // namespace

void print_cluster(std::ostream& out, const ClusterReport& report, ReportFormat format) {
  if (format == ReportFormat::kJson)
    out << json_of(report).dump(2) << "\n";
  else
    print_text(out, report);
}

}  // namespace trireme::cli
