#pragma once
// The status of a node as text that Prometheus reads (its text exposition format, version 0.0.4). Pure
// functions.

#include <string>

#include "trireme/ps/status.h"

namespace trireme::ps {

std::string metrics_text(const ServerStatus& status);
std::string metrics_text(const ClusterStatus& status);
/// Of a coordinator that is one of several, while another one leads.
std::string metrics_text_of_one_who_waits();

}  // namespace trireme::ps
