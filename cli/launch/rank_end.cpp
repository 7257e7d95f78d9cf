#include "cli/launch/rank_end.h"

#include <signal.h>
#include <sys/wait.h>

#include "cli/launch/report.h"
#include "trireme/base/error.h"

namespace trireme::cli {
namespace {

int exit_code_of(const RankProcess& rank) {
  return WIFEXITED(rank.wait_status()) ? WEXITSTATUS(rank.wait_status()) : static_cast<int>(kExitComm);
}

}  // namespace

bool cannot_join(const ElasticHost& host, const RankProcess& rank) {
  return exit_code_of(rank) == kExitUsage && !rank.is_spare() && host.has_just_joined();
}

bool ends_the_job(const ElasticHost& host, const RankProcess& rank) {
  return ends_the_job(exit_code_of(rank)) && !cannot_join(host, rank);
}

wire::MemberReport report_of(const ElasticHost& host, const RankProcess& rank) {
  wire::MemberReport report{.id = rank.member().id};
  if (!rank.ended()) return report;
  report.exit_code = exit_code_of(rank);
  // A rank that was told to stop has stopped all ranks.
  const bool was_told = report.exit_code == 128 + SIGINT || report.exit_code == 128 + SIGTERM;
  report.state = report.exit_code == 0                  ? wire::MemberState::kDone
                 : was_told || ends_the_job(host, rank) ? wire::MemberState::kFailedForGood
                                                        : wire::MemberState::kFailed;
  return report;
}

}  // namespace trireme::cli
