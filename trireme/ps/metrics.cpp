#include "trireme/ps/metrics.h"

#include <string_view>

#include "trireme/base/prometheus.h"
#include "trireme/base/text.h"

namespace trireme::ps {
namespace {

constexpr const char* kCounter = PrometheusText::kCounter;
constexpr const char* kGauge = PrometheusText::kGauge;

class Text : public PrometheusText {
 public:
  Text() : PrometheusText("trireme_ps_") {}
  /// Buckets are cumulative: values up to and including the bound.
  void histogram(std::string_view name, std::string_view help, const Histogram& histogram) {
    begin(name, "histogram", help);
    std::uint64_t up_to = 0;
    for (std::size_t i = 0; i < Histogram::kBounds.size(); ++i) {
      up_to += histogram.buckets[i];
      value({{"le", text(Histogram::kBounds[i])}}, up_to, "_bucket");
    }
    value({{"le", "+Inf"}}, histogram.count(), "_bucket");
    value({}, histogram.sum, "_sum");
    value({}, histogram.count(), "_count");
  }
  void channels(const NamedCounts& counts) {
    begin("channel_events_total", kCounter, "What happened to connections, by name.");
    for (const auto& [what, count] : counts) value({{"event", what}}, count);
  }
};

void write_leadership(Text& text, int leads) {
  text.one("leads", kGauge, "1 where this coordinator leads; with etcd, 0 where another one may.", leads);
}

}  // namespace

std::string metrics_text(const ServerStatus& status) {
  const HeldStatus& held = status.held;
  const PartitionCounts& counts = held.counts;
  Text text;
  text.one("map_version", kGauge, "Version of the map that this server has.", status.map_version);
  text.one("pushes_total", kCounter, "Pushes and assignments taken.", counts.pushes);
  text.one("push_bytes_total", kCounter, "Bytes of values pushed.", counts.push_bytes);
  text.one("pulls_total", kCounter, "Pulls answered.", counts.pulls);
  text.one("pull_bytes_total", kCounter, "Bytes of values pulled.", counts.pull_bytes);
  text.begin("requests_refused_total", kCounter, "Requests and pulls rejected, by why.");
  for (std::size_t i = 1; i <= static_cast<std::size_t>(ErrorKind::kLast); ++i) {
    const auto why = static_cast<ErrorKind>(i);
    const auto found = counts.rejected.find(why);
    text.value({{"why", name_of(why)}}, found == counts.rejected.end() ? 0 : found->second);
  }
  text.one("messages_refused_total", kCounter, "Messages that no correct peer sends.",
           status.rejected_messages);
  text.channels(status.channels);
  text.one("queued_messages", kGauge, "Messages that wait for owners of partitions.", held.queued_items);
  text.one("queued_bytes", kGauge, "Bytes of them.", held.queued_bytes);
  text.one("pauses_total", kCounter, "Pauses of connections, because a queue was full.", status.pauses);
  text.histogram("requests_per_record", "Requests that one record of a primary merges.",
                 counts.requests_per_record);
  text.one("apply_seconds_total", kCounter, "Time in which primaries applied records.",
           static_cast<double>(counts.apply_ns) * 1e-9);
  text.histogram("pull_staleness", "Steps that a pull was ahead of the slowest worker.", counts.staleness);
  text.one("parked_pulls", kGauge, "Pulls that wait for steps of other workers.", held.parked_pulls);
  const std::pair<const char*, const RoleStatus&> roles[] = {{"primary", held.primary},
                                                             {"backup", held.backup},
                                                             {"learner", held.learner},
                                                             {"feeding", held.feeding}};
  text.begin("partitions", kGauge, "Partitions by role; feeding: those of which a learner gets a copy.");
  for (const auto& [name, role] : roles) text.value({{"role", name}}, role.partitions);
  text.begin("highest_version", kGauge, "The highest version of a partition.");
  for (const auto& [name, role] : roles) text.value({{"role", name}}, role.highest_version);
  text.begin("lag_records", kGauge, "The most records of a partition that others are not known to have.");
  for (const auto& [name, role] : roles) text.value({{"role", name}}, role.most_lag);
  Version max_lag = 0;
  for (const auto& [server, lacks] : held.lag) max_lag = std::max(max_lag, lacks);
  text.one("next_lag_records", kGauge, "The most records that the next of a chain is not known to have.",
           max_lag);
  text.one("held_rows", kGauge, "Rows of sparse tables held, of all roles.", held.rows);
  text.one("held_elements", kGauge, "Values held, of all roles.", held.elements);
  text.one("held_bytes", kGauge, "Bytes of them and of optimizer state.", held.bytes);
  text.one("copied_bytes_total", kCounter, "Bytes copied to learners.", status.bytes_copied);
  return text.take();
}

std::string metrics_text_of_one_who_waits() {
  Text text;
  write_leadership(text, 0);
  return text.take();
}

std::string metrics_text(const ClusterStatus& status) {
  Text text;
  write_leadership(text, 1);
  text.one("map_version", kGauge, "Version of the map.", status.map_version);
  text.one("map_changes_total", kCounter, "Changes of the map.", status.map_changes);
  text.one("takeovers_total", kCounter, "Partitions that got another primary.", status.takeovers);
  text.one("servers", kGauge, "Servers that have not ended.", status.num_servers);
  text.one("workers", kGauge, "Workers that live.", status.num_workers);
  text.one("tables", kGauge, "Tables.", status.num_tables);
  text.begin("cluster_partitions", kGauge, "Partitions, by what is amiss with them.");
  text.value({{"state", "all"}}, status.num_partitions);
  text.value({{"state", "unplaced"}}, status.num_unplaced);
  text.value({{"state", "not whole"}}, status.num_not_whole);
  text.value({{"state", "lost"}}, status.num_lost);
  text.one("messages_refused_total", kCounter, "Messages that no correct peer sends.",
           status.rejected_messages);
  text.channels(status.channels);
  return text.take();
}

}  // namespace trireme::ps
