#pragma once
// The members of a group and the executor of lists of transfers (all_reduce_steps.h) between them. Any two
// members are connected over a network (networks.h), by one connection or several (lanes). Long transfers are
// split over the lanes. Every rank calls the same operations in the same order with the same sizes; each ends
// with the same bits, over every network. bf16 and f16 are sent as they are; values that arrive in a step are
// added up in f32 and rounded once. Every operation has a number and a hash of its arguments, which mark its
// bytes on each connection. Ranks with different operations do not mix them up, but wait until abort() or the
// deadline. An operation belongs to one thread at a time; abort() to any. After a failure all later ones
// fail.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trireme/topology/all_reduce_steps.h"
#include "trireme/topology/networks.h"
#include "trireme/wire/element.h"
#include "trireme/wire/secret.h"
#include "trireme/wire/socket.h"

namespace trireme::topology {

class Connections;
struct StepData;

/// The members, and their authentication.
struct Membership {
  int rank = 0;                           ///< of this process among the members
  std::vector<wire::Endpoint> endpoints;  ///< where each of them listens
  std::vector<std::string> names;         ///< of each, for messages: "rank 5"
  std::vector<std::string> hosts = {};    ///< of each, for Levels; empty: there is one
  wire::Secret secret;
  std::string purpose;                ///< the same on all members, and different on all other connections
  int lanes = 1;                      ///< connections between any two
  std::string network = kNetworkTcp;  ///< a name of networks()
};

/// Of connections between any two members.
inline constexpr int kMaxLanes = 64;

class Exchange {
 public:
  /// Collective. `listening` is that of this member's endpoint. Throws CommError that names the member that
  /// cannot be reached or does not come by the deadline.
  Exchange(const wire::Socket& listening, const Membership& membership, const Deadline& deadline);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(names_.size()); }
  const Levels& levels() const { return levels_; }
  int num_lanes() const;

  /// Adds or removes connections between any two members; no bit of a result depends on them. Collective,
  /// before any other code has the exchange. `listening` and `membership` are those of the constructor.
  /// Throws as the constructor does.
  void set_lanes(int lanes, const wire::Socket& listening, const Membership& membership,
                 const Deadline& deadline);

  /// Data and algorithm of a reduction; the same on all members but for the data.
  struct AllReduce {
    Algorithm algorithm = Algorithm::kRing;
    wire::Element element = wire::Element::kF32;
    wire::Reduction reduction = wire::Reduction::kSum;  ///< kAverage is not among them: divide at the end
    std::span<std::byte> data;                          ///< aligned for the element; in place
  };
  /// Throws wire::GroupError (abandoned; it does not name the cause) when a connection is lost, at the
  /// deadline, and after abort(); InvalidArgument for data that cannot be reduced.
  void all_reduce(const AllReduce& what, const Deadline& deadline);

  /// Of the parts of all members, one for each and all of one size, each member gets the sum of its own.
  struct ReduceScatter {
    wire::Element element = wire::Element::kF32;
    wire::Reduction reduction = wire::Reduction::kSum;
    std::span<const std::byte> parts;  ///< in the members' order; stays as it is
    std::span<std::byte> sum;          ///< of this member's part
  };
  /// In rank order, in one step, or by levels(), each in the order of its parts. Throws as all_reduce() does,
  /// and InvalidArgument for parts that are not as many sums as there are members.
  void reduce_scatter(const ReduceScatter& what, const Deadline& deadline);
  /// `parts`: one part per member, all of one size. Each member gives the part at its place, and gets all
  /// others. Throws as reduce_scatter() does.
  void all_gather(std::span<std::byte> parts, const Deadline& deadline);

  /// Ends pending operations, here, and with them the connections.
  void abort();

 private:
  void run(std::vector<Transfer> steps, const StepData& on, std::uint32_t hash, const Deadline& deadline);
  [[noreturn]] void give_up(const std::string& why) const;

  const int rank_;
  const std::vector<std::string> names_;
  const Levels levels_;
  const std::unique_ptr<Connections> connections_;
  std::uint32_t number_ = 0;             ///< of the operation
  std::vector<std::byte> scratch_;       ///< for values that arrive and are added
  std::vector<std::byte> partial_sums_;  ///< of a reduce-scatter by levels
  std::string failure_;                  ///< of the first operation that failed
  std::atomic<bool> aborted_ = false;
};

}  // namespace trireme::topology
