// References that pass through an agent.

#include <utility>

#include "trireme/rpc/agent_core.h"
#include "trireme/rpc/internal/protocol.h"
#include "trireme/rpc/internal/reference_table.h"
#include "trireme/wire/fields.h"

namespace trireme::rpc {

RefHandle::~RefHandle() { core_->drop(id_, introducer_); }

std::shared_ptr<RefHandle> AgentCore::make_reference(WorkerId owner) {
  RefId id;
  {
    const std::lock_guard lock(mutex_);
    id = owner == self_.id ? references_->make_own() : RefId{self_.id, owner, ++last_reference_[owner]};
  }
  return std::make_shared<RefHandle>(shared_from_this(), id, self_.id);
}

std::shared_ptr<RemoteValue> AgentCore::value_of(const RefId& id) {
  const std::lock_guard lock(mutex_);
  return references_->find(id);
}

std::size_t AgentCore::num_values() const {
  const std::lock_guard lock(mutex_);
  return references_->size();
}

/// Before a parcel is sent: notifies the owners of its references about the new holder.
void AgentCore::announce(const Parcel& parcel, WorkerId to) {
  for (const RefPass& pass : parcel.references) {
    if (pass.id.owner == to) continue;  // the owner holds it on arrival
    if (pass.id.owner == self_.id) {
      const std::lock_guard lock(mutex_);
      // The sender has a reference, so the value is not freed.
      [[maybe_unused]] const auto freed = references_->introduced(pass.id, self_.id, to);
    }
    post([owner = pass.id.owner, me = self_.id, head = IntroducedHead{pass.id, to}](Endpoint& endpoint) {
      if (owner == me) return endpoint.watch(head.holder);
      endpoint.send(
          owner, {.kind = static_cast<std::uint16_t>(MessageKind::kIntroduced), .head = wire::encode(head)});
    });
  }
}

/// References in a parcel are held from its arrival on, whenever they are read.
Handles AgentCore::adopt(const std::vector<RefPass>& references) {
  Handles handles;
  for (const RefPass& pass : references) {
    if (pass.id.owner == self_.id) {
      const std::lock_guard lock(mutex_);
      references_->hold_here(pass.id);
    }
    handles.push_back(std::make_shared<RefHandle>(shared_from_this(), pass.id, pass.introducer));
  }
  return handles;
}

void AgentCore::drop(const RefId& id, WorkerId introducer) {
  if (id.owner != self_.id) {
    return post([id, introducer](Endpoint& endpoint) {
      endpoint.send(id.owner, {.kind = static_cast<std::uint16_t>(MessageKind::kDropped),
                               .head = wire::encode(DroppedHead{id, introducer})});
    });
  }
  std::shared_ptr<RemoteValue> freed;  // destroyed after the lock
  const std::lock_guard lock(mutex_);
  freed = references_->release_here(id);
}

}  // namespace trireme::rpc
