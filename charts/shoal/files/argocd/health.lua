-- Health of shoal.dev objects for Argo CD: TrainingRun, InferencePool, RelayServer and Validator. Put it into the ConfigMap
-- argocd-cm for each of them, under resource.customizations.health.shoal.dev_TrainingRun and so on.
-- A run that trains is Healthy from its first open step on; one that is done stays so. What needs a person is Degraded, or Suspended by choice.
local health = { status = "Progressing", message = "waits for the operator" }
if obj.metadata.deletionTimestamp ~= nil then
  health.message = "is being deleted"
  return health
end
local status = obj.status
if status == nil or status.conditions == nil then
  return health
end
if status.observedGeneration ~= nil and obj.metadata.generation ~= nil and status.observedGeneration < obj.metadata.generation then
  health.message = "waits for the operator to see the newest spec"
  return health
end

local found = {}
for _, condition in ipairs(status.conditions) do
  found[condition.type] = condition
end
local function is(kind, value)
  return found[kind] ~= nil and found[kind].status == value
end
local function told(kind)
  local condition = found[kind]
  if condition.message ~= nil and condition.message ~= "" then
    return condition.message
  end
  return condition.reason
end

-- In this order: what ended says more than what it was doing. A reconcile that fails says so in Ready, and the other conditions are older.
local ends = {
  { "Failed", "True", "Degraded" },
  { "Complete", "True", "Healthy" },
  { "Suspended", "True", "Suspended" },
  { "Paused", "True", "Suspended" },
  { "Stalled", "True", "Degraded" },
  { "StalledOnSignal", "True", "Degraded" },
  { "Ready", "True", "Healthy" },
}
for _, row in ipairs(ends) do
  if is(row[1], row[2]) then
    health.status = row[3]
    health.message = told(row[1])
    return health
  end
end
if found.Ready == nil then
  return health
end
health.message = told("Ready")
if is("Ready", "Unknown") then
  return health
end

-- A run in a queue has Kueue's own reasons, most of which pass by themselves.
if is("Queued", "True") and found.Queued.reason == found.Ready.reason then
  local stands = { Deactivated = "Suspended", KueueMissing = "Degraded", QueueUnusable = "Degraded" }
  health.status = stands[found.Ready.reason] or "Progressing"
  return health
end

local waits = {
  ComponentsNotReady = true,
  NotObserved = true,
  PodsNotReady = true,
  Unschedulable = true,
  Waiting = true,
}
if found.Ready.reason == "ScaledToZero" then
  health.status = "Healthy"
elseif not waits[found.Ready.reason] then
  health.status = "Degraded"
end
return health
