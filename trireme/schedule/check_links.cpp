#include <map>

#include "trireme/schedule/internal/checks.h"
#include "trireme/schedule/internal/place.h"

namespace trireme::schedule {
namespace {

/// The transfers of one link, as each of its two ranks lists them.
struct Link {
  std::vector<Place> sends, receives;
};

using Links = std::map<std::pair<int, int>, Link>;  // by sending and receiving rank

/// The SEND that matches a RECV.
Action send_for(const Action& receive) {
  return receive.kind == ActionKind::kReceiveForward
             ? Action{receive.stage - 1, ActionKind::kSendForward, receive.microbatch}
             : Action{receive.stage + 1, ActionKind::kSendBackward, receive.microbatch};
}

Links links_of(const Program& program, const Holders& holders) {
  Links links;
  for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
    std::size_t position = 0;
    for (const Cell cell : cells_of(program.ranks[rank])) {
      for (Action action : cell) {
        action.joined = false;
        const Place place{rank, position, action};
        if (is_send(action.kind)) {
          const int to = holders.rank_of(Holders::receiver_stage(action), action.microbatch);
          links[{static_cast<int>(rank), to}].sends.push_back(place);
        } else if (is_receive(action.kind)) {
          const Action send = send_for(action);
          links[{holders.rank_of(send.stage, send.microbatch), static_cast<int>(rank)}].receives.push_back(
              place);
        }
      }
      ++position;
    }
  }
  return links;
}

}  // namespace

void check_links(const Program& program, const Holders& holders) {
  for (const auto& [ends, link] : links_of(program, holders)) {
    for (std::size_t i = 0; i < std::min(link.sends.size(), link.receives.size()); ++i) {
      const Place& send = link.sends[i];
      const Place& receive = link.receives[i];
      if (Holders::receive_of(send.action) == receive.action) continue;
      reject_at(program, receive, "message ", i + 1, " from rank ", send.rank, " is ", to_text(send.action),
                " (position ", send.position,
                " there); the receives of a link are in the order of its sends");
    }
    if (link.sends.size() > link.receives.size()) {
      const Place& send = link.sends[link.receives.size()];
      reject_at(program, send, "rank ", ends.second, " never receives it; ",
                to_text(Holders::receive_of(send.action)), " is missing there");
    }
    if (link.receives.size() > link.sends.size()) {
      const Place& receive = link.receives[link.sends.size()];
      reject_at(program, receive, "rank ", ends.first, " never sends it; ", to_text(send_for(receive.action)),
                " is missing there");
    }
  }
}

}  // namespace trireme::schedule
