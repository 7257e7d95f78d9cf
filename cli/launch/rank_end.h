#pragma once
// The end of a rank's process in an elastic job: whether it ends the job, and its report to the leader.

#include "cli/launch/elastic_host.h"
#include "cli/launch/rank_process.h"

namespace trireme::cli {

/// Whether that process, which has ended, has rejected its configuration or its place, on a host that has
/// just joined the job: the fault is not that of the job.
bool cannot_join(const ElasticHost& host, const RankProcess& rank);

/// Whether the end of that process ends the job, because another process would end in the same way.
bool ends_the_job(const ElasticHost& host, const RankProcess& rank);

/// Of that process at present.
wire::MemberReport report_of(const ElasticHost& host, const RankProcess& rank);

}  // namespace trireme::cli
