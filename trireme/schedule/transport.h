#pragma once
// How messages between ranks behave; a program is written for one model and proven under it. Pure values.

#include <string>
#include <string_view>

namespace trireme::schedule {

enum class Transport {
  kBuffered,    ///< a send returns at once; messages of a link arrive in the order in which they were sent
  kRendezvous,  ///< a send lasts until its receive runs, and the other way round (nccl)
};

/// "buffered", "rendezvous".
std::string to_text(Transport transport);

/// Throws InvalidArgument that suggests the nearest known name.
Transport parse_transport(std::string_view name);

}  // namespace trireme::schedule
