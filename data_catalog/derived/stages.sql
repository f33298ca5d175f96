-- One row for each stage of $run: its set, how far it is, how it ended.
with marks as (
    select stage, min(created_at) as started_at, min(manifest_id) as first_id,
        max(step) filter (kind = 'step') as last_step,
        max(created_at) filter (kind in ('stage', 'filter') or stage in ('evaluation', 'held-out', 'curation')) as ended_at
    from manifests where run = $run and kind <> 'run' group by stage
),
ends as (
    select stage, arg_max(verdict, created_at) as verdict, arg_max(reason, created_at) as reason
    from gates where run = $run and is_final group by stage
),
sets as (
    select stage, count(*) as num_problems
    from problem_sets where run = $run and not is_quarantined group by stage
),
results as (
    select stage, arg_max(uri, created_at) as checkpoint
    from checkpoints where run = $run and is_stage_end group by stage
),
parts as (
    select stage, any_value(uri) as problem_set
    from artefacts join manifests using (manifest_id, run, stage)
    where run = $run and name = 'problems' and manifests.kind = 'problems' group by stage
)
select $run as run, stage, row_number() over (
        order by case when stage = 'evaluation' then ended_at else started_at end, first_id
    ) as position, started_at,
    ended_at, num_problems, last_step, verdict, reason, checkpoint, problem_set
from marks left join ends using (stage) left join sets using (stage) left join results using (stage)
    left join parts using (stage)
