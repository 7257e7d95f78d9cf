#include "trireme/comm/internal/network_choice.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/comm/chosen_network.h"
#include "trireme/topology/all_reduce_choice.h"
#include "trireme/topology/exchange.h"
#include "trireme/topology/rdma_adapters.h"

namespace trireme::comm {
namespace {

constexpr double kSmall_bytes = 4, kLarge_bytes = 4 << 20;
constexpr double kFaster = 0.9, kSlower = 1.1;
/// A network that needs longer for a few messages is not the better one.
constexpr double kMaxMeasuring_s = 20;
constexpr const char* kChoiceKey = "network/choice";
constexpr const char* kChosenKey = "network/chosen";
/// Prefix of the reason in a published outcome.
constexpr const char* kFailed = "failed ";

double message_s(const topology::MessageCost& cost, double bytes) {
  return cost.alpha_s + bytes * cost.beta_s_per_byte;
}

std::string in_us(double seconds) { return text(std::llround(seconds * 1e6), " us"); }

void tell(const BackendRequest& world, const std::string& key, const std::string& words) {
  world.store->set(key, std::vector<std::uint8_t>(words.begin(), words.end()));
}

std::string told(const BackendRequest& world, const std::string& key, const Deadline& deadline) {
  world.store->wait({key}, whole_milliseconds(deadline.remaining_s()));
  return world.store->get_to_str(key);
}

/// The first rank of each host, in rank order.
std::vector<int> first_ranks(const std::vector<std::string>& host_ids) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < host_ids.size(); ++rank) {
    if (std::find(host_ids.begin(), host_ids.begin() + static_cast<std::ptrdiff_t>(rank), host_ids[rank]) ==
        host_ids.begin() + static_cast<std::ptrdiff_t>(rank))
      ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

topology::MessageCost measure(const BackendRequest& world, const std::vector<int>& members, int me,
                              const char* network, const Deadline& deadline) {
  const auto key = [&](int member) { return text("network/", network, "/", member); };
  const wire::Socket listening = wire::listen_at({world.interface_addr, 0});
  tell(world, key(me), listening.local().text());
  topology::Membership membership{.rank = me,
                                  .endpoints = {},
                                  .names = {},
                                  .secret = world.secret,
                                  .purpose = text("choice of the network, ", network),
                                  .network = network};
  for (std::size_t i = 0; i < members.size(); ++i) {
    membership.names.push_back(text("rank ", members[i]));
    membership.endpoints.push_back(
        wire::Endpoint::parse(told(world, key(static_cast<int>(i)), deadline), "the address of a rank"));
  }
  topology::Exchange exchange(listening, membership, deadline);
  return topology::measure_choice(exchange, {}, {}, deadline).cost;
}

std::string first_line_of(const std::exception& error) { return split(error.what(), '\n').front(); }

/// Rank 0's decision, after every member has published the outcome of its measurements.
NetworkChoice decide(const BackendRequest& world, const std::vector<int>& members,
                     const topology::MessageCost& tcp, const topology::MessageCost& ucx,
                     const Deadline& deadline) {
  for (std::size_t i = 1; i < members.size(); ++i) {
    const std::string outcome = told(world, text("network/outcome/", i), deadline);
    if (outcome.starts_with(kFailed))
      return {.network = topology::kNetworkTcp,
              .reason = text("rank ", members[i], ": ", outcome.substr(std::string_view(kFailed).size()))};
  }
  return choose_measured(tcp, ucx);
}

std::string encode(const NetworkChoice& choice) {
  return text(choice.network, "\n", choice.is_news ? 1 : 0, "\n", choice.reason);
}

NetworkChoice decode_choice(const std::string& words) {
  const std::vector<std::string> fields = split(words, '\n');
  return {.network = fields.at(0), .reason = fields.at(2), .is_news = fields.at(1) == "1"};
}

}  // namespace

std::string why_not_ucx() {
  const char* folder = std::getenv("TRIREME_INFINIBAND");
  const auto ports = folder == nullptr ? topology::active_rdma_ports() : topology::active_rdma_ports(folder);
  if (ports.empty()) return "no RDMA adapter has an active port";
  return topology::network_unavailable_because(topology::kNetworkUcx);
}

std::optional<NetworkChoice> choose_unmeasured(const std::vector<Arrival>& arrivals) {
  const auto is_elsewhere = [&](const Arrival& each) { return each.host_id != arrivals.front().host_id; };
  const auto tcp = [](std::string reason) {
    return NetworkChoice{.network = topology::kNetworkTcp, .reason = std::move(reason)};
  };
  if (std::ranges::none_of(arrivals, is_elsewhere)) return tcp("all ranks are on one host");
  for (std::size_t rank = 0; rank < arrivals.size(); ++rank) {
    if (!arrivals[rank].not_ucx_because.empty())
      return tcp(text(arrivals[rank].not_ucx_because, " (rank ", rank, ")"));
  }
  return std::nullopt;
}

NetworkChoice choose_measured(const topology::MessageCost& tcp, const topology::MessageCost& ucx) {
  const double small_by_tcp = message_s(tcp, kSmall_bytes), small_by_ucx = message_s(ucx, kSmall_bytes),
               large_by_tcp = message_s(tcp, kLarge_bytes), large_by_ucx = message_s(ucx, kLarge_bytes);
  const bool is_better = large_by_ucx <= kFaster * large_by_tcp && small_by_ucx <= kSlower * small_by_tcp;
  return {
      .network = is_better ? topology::kNetworkUcx : topology::kNetworkTcp,
      .reason = text("a message of 4 MiB takes ", in_us(large_by_ucx), " over UCX and ", in_us(large_by_tcp),
                     " over TCP, a small one ", in_us(small_by_ucx), " and ", in_us(small_by_tcp)),
      .is_news = true};
}

void keep_network(c10d::Store& store, const NetworkChoice& choice) {
  const std::string words = encode(choice);
  store.set(kChosenKey, std::vector<std::uint8_t>(words.begin(), words.end()));
}

std::optional<ChosenNetwork> chosen_network(Context& context) {
  if (!context.store().check({kChosenKey})) return std::nullopt;
  const NetworkChoice choice = decode_choice(context.store().get_to_str(kChosenKey));
  return ChosenNetwork{.name = choice.network, .reason = choice.reason};
}

NetworkChoice choose_network(const BackendRequest& world, const std::vector<Arrival>& arrivals) {
  if (auto choice = choose_unmeasured(arrivals)) return *choice;
  const std::vector<int> members = first_ranks(world.host_ids);
  const auto place = std::ranges::find(members, world.rank);
  // Limit of each measurement. Rank 0 waits for the outcomes of all for two of these. The rest is for
  // distributing the choice.
  const double each_s = std::min(world.timeout_s / 5, kMaxMeasuring_s);
  const Deadline told_by = Deadline::after_s(world.timeout_s);
  if (place == members.end()) return decode_choice(told(world, kChoiceKey, told_by));
  const int me = static_cast<int>(place - members.begin());
  topology::MessageCost tcp, ucx;
  std::string outcome, measured = "TCP";
  try {
    tcp = measure(world, members, me, topology::kNetworkTcp, Deadline::after_s(each_s));
    measured = "UCX";
    ucx = measure(world, members, me, topology::kNetworkUcx, Deadline::after_s(each_s));
  } catch (const std::exception& error) {
    outcome = text(kFailed, measured, " failed: ", first_line_of(error));
  }
  if (me != 0) {
    tell(world, text("network/outcome/", me), outcome);
    return decode_choice(told(world, kChoiceKey, told_by));
  }
  NetworkChoice choice;
  try {
    choice = outcome.empty()
                 ? decide(world, members, tcp, ucx, Deadline::after_s(2 * each_s))
                 : NetworkChoice{.network = topology::kNetworkTcp,
                                 .reason = text("rank ", world.rank, ": ",
                                                outcome.substr(std::string_view(kFailed).size()))};
  } catch (const std::exception& error) {
    choice = {.network = topology::kNetworkTcp,
              .reason = text("the measurement did not end: ", first_line_of(error))};
  }
  tell(world, kChoiceKey, encode(choice));
  return choice;
}

}  // namespace trireme::comm
