# c10d's header of the gloo backend includes headers of gloo that no torch package ships: one source sees
# stand-ins for them. Included after the modules, because a source's properties belong to its target.
set_property(SOURCE "${PROJECT_SOURCE_DIR}/trireme/comm/gloo_backend.cpp"
             APPEND PROPERTY INCLUDE_DIRECTORIES "${PROJECT_SOURCE_DIR}/trireme/comm/internal/gloo_headers")
