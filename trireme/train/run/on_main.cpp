#include "trireme/train/run/internal/on_main.h"

#include "trireme/comm/on_every_rank.h"

namespace trireme::train {

void on_main(comm::Context& context, const std::function<void()>& work) {
  comm::on_every_rank(context.world(), [&] {
    if (context.is_main()) work();
  });
}

}  // namespace trireme::train
