#include "trireme/topology/probe.h"

#include <sstream>

#include "trireme/base/error.h"
#include "trireme/topology/internal/match.h"
#include "trireme/topology/tournament.h"

namespace trireme::topology {
namespace {

/// Data that a rank gives to the others on arrival, as two lines.
struct Presence {
  std::string host_id;
  wire::Endpoint endpoint;
};

std::string encode(const Presence& presence) {
  return text(presence.endpoint.text(), "\n", presence.host_id);
}

Presence decode(const std::string& encoded) {
  const auto line = encoded.find('\n');
  return {.host_id = encoded.substr(line + 1),
          .endpoint = wire::Endpoint::parse(encoded.substr(0, line), "the address of a rank")};
}

/// Links of one rank as lines "TO THERE_ALPHA THERE_RATE BACK_ALPHA BACK_RATE".
class Measured {
 public:
  void add(int to, const std::pair<Link, Link>& both) {
    lines_.precision(17);
    lines_ << to << ' ' << both.first.alpha_s << ' ' << both.first.bytes_per_s << ' ' << both.second.alpha_s
           << ' ' << both.second.bytes_per_s << '\n';
  }
  std::string text() const { return lines_.str(); }

 private:
  std::ostringstream lines_;
};

void read_measured(const std::string& lines, int from, LinkTable& table) {
  std::istringstream in(lines);
  int to = 0;
  Link there, back;
  while (in >> to >> there.alpha_s >> there.bytes_per_s >> back.alpha_s >> back.bytes_per_s) {
    table.links[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)] = there;
    table.links[static_cast<std::size_t>(to)][static_cast<std::size_t>(from)] = back;
  }
}

class Prober {
 public:
  Prober(Meeting& meeting, const ProbeOptions& options)
      : meeting_(meeting),
        options_(options),
        listening_(wire::listen_at({options.address, 0})),
        secret_(wire::secret_at(listening_.local(), options.secret)) {}

  LinkTable probe();

 private:
  void meet(const Pair& pair, int round);

  Meeting& meeting_;
  const ProbeOptions& options_;
  const wire::Socket listening_;
  const wire::Secret secret_;
  std::vector<Presence> ranks_;
  Measured measured_;
};

void Prober::meet(const Pair& pair, int round) {
  const auto deadline = Deadline::after_s(options_.timeout_s);
  const MatchTerms terms{.from = pair.a, .to = pair.b, .round = round};
  if (meeting_.rank() == pair.b) {
    answer_match(accept_match(listening_, secret_, terms, deadline), deadline);
    return;
  }
  const wire::Endpoint& there = ranks_[static_cast<std::size_t>(pair.b)].endpoint;
  const wire::Socket socket = connect_match(there, secret_, terms, deadline);
  measured_.add(pair.b, drive_match(socket, options_.patience_s, deadline));
}

LinkTable Prober::probe() {
  std::vector<std::string> host_ids;
  for (const auto& each : meeting_.gather(encode({options_.host_id, listening_.local()}), "arrive")) {
    ranks_.push_back(decode(each));
    host_ids.push_back(ranks_.back().host_id);
  }
  LinkTable table{.host_of = number_hosts(host_ids), .links = {}};
  table.links.assign(ranks_.size(), std::vector<Link>(ranks_.size()));
  const auto rounds = tournament(table.host_of);
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    std::string problem;
    for (const Pair& pair : rounds[i]) {
      if (pair.a != meeting_.rank() && pair.b != meeting_.rank()) continue;
      try {
        meet(pair, static_cast<int>(i));
      } catch (const CommError& error) {
        problem = text("the link between rank ", pair.a, " and rank ", pair.b, " failed, as rank ",
                       meeting_.rank(), " says: ", error.what());
      }
    }
    meeting_.end_round(problem, text("end round ", i + 1, " of ", rounds.size(), " of the probe"));
  }
  const auto measured = meeting_.gather(measured_.text(), "tell what it has measured");
  for (std::size_t rank = 0; rank < measured.size(); ++rank)
    read_measured(measured[rank], static_cast<int>(rank), table);
  return table;
}

}  // namespace

LinkTable probe_links(Meeting& meeting, const ProbeOptions& options) {
  return Prober(meeting, options).probe();
}

}  // namespace trireme::topology
