"""Feature gates by Kubernetes minor: what ``--help`` of kube-apiserver and kubelet lists, taken together. Pure.

k3s lists none of them itself, so a gate can only be checked by data. Read from v1.34.4, v1.35.4, v1.36.3 and v1.37.2;
what is locked is listed nowhere. Another patch release may know a gate more.
"""

from __future__ import annotations

FIRST_MINOR, LAST_MINOR = 34, 37

_BY_MINORS = {
    (34, 34): """
        ImageMaximumGCAge InPlacePodVerticalScaling InformerResourceVersion JobManagedBy PodObservedGenerationTracking
        PreferSameTrafficDistribution SupplementalGroupsPolicy SystemdWatchdog UserNamespacesPodSecurityStandards
    """,
    (34, 35): """
        CustomCPUCFSQuotaPeriod DRAAdminAccess DRAPrioritizedList DeclarativeValidation DeclarativeValidationTakeover
        DisableCPUQuotaWithExclusiveCPUs ExternalServiceAccountTokenSigner ImageVolume InOrderInformers
        InTreePluginPortworxUnregister KubeletFineGrainedAuthz KubeletPSI KubeletPodResourcesDynamicResources
        KubeletPodResourcesGet MutableCSINodeAllocatableCount MutatingAdmissionPolicy NodeLogQuery ProcMountType
        SELinuxChangePolicy SELinuxMountReadWriteOncePod UserNamespacesSupport
    """,
    (34, 36): """
        ClusterTrustBundle ClusterTrustBundleProjection DRADeviceTaints DRAExtendedResource
        DRAResourceClaimDeviceStatus HPAConfigurableTolerance HostnameOverride PodCertificateRequest
        PodReadyToStartContainersCondition PreventStaticPodAPIReferences RelaxedServiceNameValidation SELinuxMount
        StorageVersionMigrator WatchCacheInitializationPostStartHook
    """,
    (34, 37): """
        APIResponseCompression APIServerIdentity APIServingWithRoutine AllAlpha AllBeta
        AllowParsingUserUIDFromCertAuth AllowUnsafeMalformedObjectDeletion CBORServingAndStorage
        CPUManagerPolicyAlphaOptions CPUManagerPolicyBetaOptions CSIVolumeHealth ClearingNominatedNodeNameAfterBinding
        ClientsAllowCBOR ClientsPreferCBOR CloudControllerManagerWebhook ComponentFlagz ComponentStatusz
        ConcurrentWatchObjectDecode ContainerCheckpoint ContainerRestartRules ContainerStopSignals ContextualLogging
        CoordinatedLeaderElection CrossNamespaceVolumeDataSource DRAConsumableCapacity DRADeviceBindingConditions
        DRAPartitionableDevices DRASchedulerFilterTimeout DeploymentReplicaSetTerminatingReplicas
        DetectCacheInconsistency EnvFiles EventedPLEG GracefulNodeShutdown GracefulNodeShutdownBasedOnPodPriority
        HPAScaleToZero InPlacePodVerticalScalingExclusiveCPUs InPlacePodVerticalScalingExclusiveMemory
        KubeletCrashLoopBackOffMax KubeletEnsureSecretPulledImages KubeletInUserNamespace KubeletSeparateDiskGC
        KubeletServiceAccountTokenForCredentialProviders ListFromCacheSnapshot
        LocalStorageCapacityIsolationFSQuotaMonitoring LoggingAlphaOptions LoggingBetaOptions
        MatchLabelKeysInPodTopologySpread MatchLabelKeysInPodTopologySpreadSelectorMerge MaxUnavailableStatefulSet
        MemoryQoS NominatedNodeNameForExpectation OpenAPIEnums PodAndContainerStatsFromCRI PodDeletionCost
        PodLevelResources PodLogsQuerySplitStreams PodTopologyLabelsAdmission PortForwardWebsockets QOSReserved
        ReduceDefaultCrashLoopBackOffDecay ReloadKubeletServerCertificateFile RemoteRequestHeaderUID
        ResourceHealthStatus RotateKubeletServerCertificate RuntimeClassInImageCriApi SchedulerAsyncAPICalls
        SchedulerAsyncPreemption SchedulerPopFromBackoffQ ServiceAccountNodeAudienceRestriction
        SizeBasedListCostEstimate StatefulSetSemanticRevisionComparison StorageCapacityScoring StorageVersionAPI
        StorageVersionHash StrictIPCIDRValidation StructuredAuthenticationConfigurationEgressSelector
        TokenRequestServiceAccountUIDValidation TopologyManagerPolicyAlphaOptions TopologyManagerPolicyBetaOptions
        TranslateStreamCloseWebsocketRequests UnauthenticatedHTTP2DOSMitigation UnknownVersionInteroperabilityProxy
        WatchList WatchListClient WindowsCPUAndMemoryAffinity WindowsGracefulNodeShutdown all alpha beta ga v1
    """,
    (35, 35): """
        CSIServiceAccountTokenSecrets
    """,
    (35, 36): """
        DRADeviceTaintRules GangScheduling NodeDeclaredFeatures
    """,
    (35, 37): """
        AuthorizePodWebsocketUpgradeCreatePermission CRDObservedGenerationTracking
        CloudControllerManagerWatchBasedRoutesReconciliation ConstrainedImpersonation GenericWorkload
        InOrderInformersBatchProcess InPlacePodLevelResourcesVerticalScaling MutablePVNodeAffinity
        MutablePodResourcesForSuspendedJobs MutableSchedulingDirectivesForSuspendedJobs OpportunisticBatching
        RestartAllContainersOnContainerExits StructuredAuthenticationConfigurationJWKSMetrics
        TaintTolerationComparisonOperators UserNamespacesHostNetworkSupport VolumeLimitScaling
    """,
    (36, 36): """
        InPlacePodVerticalScalingInitContainers PLEGOnDemandRelist WorkloadAwarePreemption
    """,
    (36, 37): """
        AtomicFIFO CRIListStreaming ClientsAllowCARotation ClientsAllowTLSCacheGC
        ControllerManagerReleaseLeaderElectionLockOnExit DRAListTypeAttributes DRANodeAllocatableResources
        DRAResourceClaimGranularStatusAuthorization DRAResourcePoolStatus DRAWorkloadResourceClaims
        DeclarativeValidationBeta ExtendWebSocketsToKubelet ImageVolumeWithDigest ManifestBasedAdmissionControlConfig
        NativeHistograms PersistentVolumeClaimUnusedSinceTime PodLevelResourceManagers PodsAPI
        ReloadKubeletClientCAFile ResourceHealthStatusMessage ShardedListAndWatch StaleControllerConsistencyDaemonSet
        StaleControllerConsistencyJob StaleControllerConsistencyReplicaSet StaleControllerConsistencyStatefulSet
        TopologyAwareWorkloadScheduling UnlockWhileProcessingFIFO WorkloadWithJob
    """,
    (37, 37): """
        APIServerWebhookAuthenticationToken AtomicWriteVolumeUserFields CompositePodGroup
        ConsistentListFromCacheSkipTimeoutFallback DRADerivedAttributes DRADeviceCompatibilityGroups
        DRAFractionalCapacityRange DRAOptionalNodeOperations DRAPartitionableDevicesType DefaultPodSysctls
        EmptyDirVolumeMode EtcdRangeStream EvictionRequestAPI ExcludeAdmissionWebhookVirtualResources
        GRPCContainerProbeTLS H2CContainerProbe HPAGeneration HPAOptimizedSelectorStore HugepageAwareEviction
        InPlacePodVerticalScalingMemoryBackedVolumes InPlacePodVerticalScalingSchedulerPreemption
        InterPodAffinityHostnameFastPath KubeProxyNFTablesLocalhostNodePorts KubeletAllocatedPodsEndpoint
        NFTablesNetlink NodeControllerLeaseCircuitBreaker NodeLifecycleConditions PodGroupPreemptionPolicy
        PodLevelResourcesFixDefaulting PodLevelResourcesFixKubeletQOSClass SchedulerPreQueueingHints
        StaleControllerConsistencyHPA StatefulSetRecreateStrategy VolumeBindMountOptions WatchListCompression
        WebhookRoundTripLoadBalancing
    """,
}
"""First and last of these minors that list the gates beside it."""

KNOWN: dict[str, range] = {
    name: range(first, last + 1) for (first, last), names in _BY_MINORS.items() for name in names.split()
}
"""Gate to the minors that know it."""
