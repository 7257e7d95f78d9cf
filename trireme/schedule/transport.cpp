#include "trireme/schedule/transport.h"

#include <array>
#include <vector>

#include "trireme/base/error.h"

namespace trireme::schedule {
namespace {

struct TransportRow {
  Transport transport;
  std::string_view name;
};

constexpr std::array kTransports{TransportRow{Transport::kBuffered, "buffered"},
                                 TransportRow{Transport::kRendezvous, "rendezvous"}};

}  // namespace

std::string to_text(Transport transport) {
  for (const TransportRow& row : kTransports) {
    if (row.transport == transport) return std::string(row.name);
  }
  throw InternalError("a transport without a name");
}

Transport parse_transport(std::string_view name) {
  std::vector<std::string> known;
  for (const TransportRow& row : kTransports) {
    if (row.name == name) return row.transport;
    known.emplace_back(row.name);
  }
  throw InvalidArgument(text("unknown transport '", name, "'", suggest(name, known)));
}

}  // namespace trireme::schedule
