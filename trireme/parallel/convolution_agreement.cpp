#include "trireme/parallel/convolution_agreement.h"

#include "trireme/base/clock.h"
#include "trireme/base/text.h"

namespace trireme::parallel {

model::ConvolutionChoice measured_convolutions_here(const Log& log, const model::Convolutions& convolutions) {
  if (convolutions.shapes.empty()) return {};
  const double begin_s = now_s();
  const model::CachedTimes found =
      model::cached_convolutions(model::convolution_cache_folder(), model::convolution_conditions(),
                                 convolutions, model::measure_convolution);
  model::ConvolutionChoice choice = fastest(convolutions, found.times);
  if (found.measured_now > 0) {
    log.info("convolutions: ", describe(choice), "; ", found.measured_now, " shapes measured in ",
             human_duration(now_s() - begin_s),
             found.not_kept_because.empty() ? "" : "; not kept: ", found.not_kept_because);
  }
  return choice;
}

model::ConvolutionChoice agreed(comm::Group& group, const model::ConvolutionChoice& mine) {
  return model::convolution_choice_from(group.all_gather_text(to_text(mine)).front());
}

model::ConvolutionChoice measured_convolutions(comm::Context& context, model::Model& model,
                                               const Fields& inputs) {
  const auto mine = [&] {
    return measured_convolutions_here(context.log(), convolutions_of(model, inputs, inputs.rows()));
  };
  return agreed(context.world(), context.is_main() ? mine() : model::ConvolutionChoice{});
}

}  // namespace trireme::parallel
