#pragma once
// The launcher's side of an elastic job: forms its worlds and writes them into the job's store, where the
// processes of the job wait for them (comm/elastic.h). Its calls of the store end within seconds. Not
// thread-safe.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cli/launch/regroup.h"
#include "trireme/wire/elastic_world.h"
#include "trireme/wire/store_client.h"

namespace trireme::cli {

struct ElasticOptions {
  int wanted_ranks = 1;
  int min_ranks = 1;
  int num_replacements = 0;  ///< processes that may be started for others that have failed
};

class ElasticJob {
 public:
  ElasticJob(wire::StoreClientOptions store, const ElasticOptions& options);

  /// An id that no process of the job has had.
  wire::ElasticMember new_member();
  const wire::ElasticWorld& world() const { return world_; }
  /// Writes the world of all `ranks`, of the generation after the present one; the first has generation 0.
  void begin(std::vector<wire::ElasticMember> ranks);

  /// Whether a rank of the present world has lost it, so that all of them have to come to the next one.
  bool is_lost();
  /// Ranks that still come to the rendezvous of the present world are told to give up.
  void give_up(const std::string& cause);
  /// Whether that process waits for the next world. Asked until it does, then remembered.
  bool waits(const std::string& id);

  /// Why ranks have lost the present world, as the first of them by id says that waits; empty: not known.
  std::string cause() const;

  bool may_replace() const { return num_replacements_ < options_.num_replacements; }
  void count_replacement() { ++num_replacements_; }
  int num_replacements() const { return num_replacements_; }

  /// The next world of those that live and of spares; nothing where there is none.
  std::optional<wire::ElasticWorld> next(const std::vector<wire::ElasticMember>& living,
                                         const std::vector<wire::ElasticMember>& spares) const;
  /// Makes it the present one.
  void begin(const wire::ElasticWorld& next);

 private:
  const ElasticOptions options_;
  wire::StoreClient store_;
  wire::ElasticWorld world_{.generation = -1};
  std::map<std::string, wire::WaitingMember> waiting_;  ///< for the next world, as far as known
  int num_members_ = 0;
  int num_replacements_ = 0;
};

}  // namespace trireme::cli
