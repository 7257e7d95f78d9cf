#pragma once
// Ranks that are threads, each with an exchange, over loopback or between hosts in namespaces.

#include <atomic>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/switched_hosts.h"
#include "trireme/base/error.h"
#include "trireme/topology/exchange.h"

namespace trireme::test {

struct ExchangeRank {
  topology::Exchange& exchange;
  int rank;
  std::function<void(int)> set_lanes;  ///< of the exchange
};

inline const wire::Secret kExchangeSecret = wire::Secret::from_text("the secret of this exchange", "a test");

struct ExchangeOptions {
  const SwitchedHosts* hosts = nullptr;  ///< one rank on each host; null: loopback
  std::function<wire::Secret(int)> secret_of = [](int) { return kExchangeSecret; };
  double timeout_s = 20;  ///< of the connection
  int lanes = 1;
  std::vector<std::string> host_names = {};  ///< for levels
};

/// Returns the result of each rank: an error text, or nothing.
inline std::vector<std::string> on_exchange_ranks(int size, const std::function<void(ExchangeRank)>& body,
                                                  const ExchangeOptions& options = {}) {
  const auto on_host = [&](int rank, const std::function<void()>& what) {
    options.hosts != nullptr ? options.hosts->on_host(rank, what) : what();
  };
  topology::Membership common;
  common.purpose = "a test";
  // The same tests also run over each other network: tests/CMakeLists.txt.
  if (const char* network = std::getenv("TRIREME_TEST_NETWORK")) common.network = network;
  common.lanes = options.lanes;
  common.hosts = options.host_names;
  std::vector<wire::Socket> listening(static_cast<std::size_t>(size));
  for (int rank = 0; rank < size; ++rank) {
    const std::string address = options.hosts != nullptr ? options.hosts->address(rank) : "127.0.0.1";
    auto& mine = listening[static_cast<std::size_t>(rank)];
    on_host(rank, [&] { mine = wire::listen_at({address, 0}); });
    common.endpoints.push_back(mine.local());
    common.names.push_back(text("rank ", rank));
  }
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      topology::Membership mine = common;
      mine.rank = rank;
      mine.secret = options.secret_of(rank);
      const auto run = [&] {
        const wire::Socket& mine_listening = listening[static_cast<std::size_t>(rank)];
        const Deadline deadline = Deadline::after_s(options.timeout_s);
        topology::Exchange exchange(mine_listening, mine, deadline);
        body({exchange, rank, [&](int lanes) { exchange.set_lanes(lanes, mine_listening, mine, deadline); }});
      };
      try {
        on_host(rank, run);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace trireme::test
